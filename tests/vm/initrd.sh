#!/bin/busybox sh
# /init of the initrd: reaches the host's root, makes it look booted, and goes on in it with init.sh.
# The host's root is read-only; what the guest writes stays in its memory.
# As much as possible happens here: under emulation busybox starts several times faster than a dynamically linked program.
# shellcheck shell=dash
/bin/busybox mkdir -p /proc /sys /dev /lower /upper /root
/bin/busybox --install -s /bin
PATH=/bin

mount_9p() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2"; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do
    insmod "$module"
done

mount_9p host /lower ro,cache=loose
mount -t tmpfs -o size=75% upper /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work root /root

# What run and the two hosts tell each other.
control=/root/run/vm
mount -t tmpfs -o mode=755 run /root/run
mkdir /root/run/lock $control
mount_9p control $control cache=none
if grep -q share /sys/bus/virtio/drivers/9pnet_virtio/*/mount_tag; then
    mkdir -p /root/share
    mount_9p share /root/share cache=none
fi

mkdir -p /root/lib/modules
mount -o bind "/root$(cat $control/modules)" /root/lib/modules

mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd
mount -t configfs configfs /sys/kernel/config
mount -t debugfs debugfs /sys/kernel/debug
mount -t cgroup2 cgroup2 /sys/fs/cgroup

hostname "$KAERU_VM_HOST"
ifconfig lo 127.0.0.1 up
for dir in proc sys dev; do
    mount --move /$dir /root/$dir
done
exec switch_root /root /bin/bash "$(cat $control/init)"
