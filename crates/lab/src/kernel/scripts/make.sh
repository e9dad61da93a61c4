# Runs in the guest: makes a file system on each disk, with the apps' files under fs-verity and the tree encrypted.
# Writes a line `FS ok` or `FS why not` to /mnt/out/made for each.
lab() { /mnt/out/postread lab guest "$@"; }

make() { # FS DEVICE
  case $1 in
    ext4) mkfs.ext4 -q -F -b 4096 -O verity,encrypt "$2" || return ;;
    f2fs) mkfs.f2fs -q -f -O extra_attr,verity,encrypt "$2" || return ;;
  esac
  mkdir -p "/mnt/$1" && mount -t "$1" "$2" "/mnt/$1" || return
  mkdir "/mnt/$1/apps" "/mnt/$1/tree" || return
  lab make-apps "/mnt/$1/apps" || return
  for file in "/mnt/$1"/apps/*; do
    /mnt/out/postread enable "$file" || return
  done
  identifier=$(xfs_io -c add_enckey "/mnt/$1" < /mnt/out/key | sed -n 's/.*identifier //p')
  [ -n "$identifier" ] || return
  xfs_io -c "set_encpolicy -v 2 $identifier" "/mnt/$1/tree" || return
  lab make-tree "/mnt/$1/tree" || return
  umount "/mnt/$1"
}

: > /mnt/out/made
uname -r > /mnt/out/version
for pair in ext4:/dev/ubda f2fs:/dev/ubdb; do
  if error=$(make "${pair%:*}" "${pair#*:}" 2>&1); then
    echo "${pair%:*} ok"
  else
    echo "${pair%:*} $(echo "$error" | tail -n 1)"
  fi >> /mnt/out/made
done
