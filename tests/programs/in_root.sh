# Runs a script in a root of Debian: sh in_root.sh ROOT SCRIPT, inside of `unshare --mount --pid
# --fork`. All mounts are in that namespace, and end with it. The device is the machine's, as the
# udev rule would leave it.
set -eu
cd "$1"
mount --bind . .
cd "$1"
mount -t proc proc proc
mount --rbind /sys sys
mount -t tmpfs run run
mount -t tmpfs -o mode=755 dev dev
mkdir dev/shm
chmod 1777 dev/shm
for device in null zero full random urandom; do
    cp -a "/dev/$device" dev/
done
if [ -e /dev/userfaultfd ]; then
    cp -a /dev/userfaultfd dev/
    chmod 0600 dev/userfaultfd
fi
# A root of its own, not a chroot: in a chroot no process can make a namespace.
pivot_root . mnt
cd /
# This root may have no umount.
chroot /mnt umount -l /
if grep -q '^terrace:' /etc/group && [ -e /dev/userfaultfd ]; then
    chgrp terrace /dev/userfaultfd
    chmod 0660 /dev/userfaultfd
fi
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
exec sh -eu -c "$2"
