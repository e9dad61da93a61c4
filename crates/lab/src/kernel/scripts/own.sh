# own.sh OUT IMAGE ROUNDS JOBS
# Runs as root in a mount namespace of its own: what is mounted here goes away with this shell.
set -e
mount -t tmpfs none /mnt
mkdir /mnt/out /mnt/own
mount --bind "$1" /mnt/out
mkfs.ext4 -q -F -b 4096 -O encrypt "$2"
mount -o loop "$2" /mnt/own
mkdir /mnt/own/tree
identifier=$(xfs_io -c add_enckey /mnt/own < /mnt/out/key | sed -n 's/.*identifier //p')
[ -n "$identifier" ]
xfs_io -c "set_encpolicy -v 2 $identifier" /mnt/own/tree
/mnt/out/postread lab guest make-tree /mnt/own/tree
/mnt/out/postread lab guest measure-own "$3" "$4"
