# Runs in the guest: mounts what was made and measures.
for pair in ext4:/dev/ubda f2fs:/dev/ubdb; do
  fs=${pair%:*}
  grep -q "^$fs ok" /mnt/out/made || continue
  mkdir -p "/mnt/$fs" && mount -t "$fs" -o ro "${pair#*:}" "/mnt/$fs" || exit 1
  xfs_io -c add_enckey "/mnt/$fs" < /mnt/out/key > /dev/null || exit 1
done
exec /mnt/out/postread lab guest measure
