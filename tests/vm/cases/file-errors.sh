# What goes wrong with files and disks: no room left, a file that is cut short, a disk or a file in use, read-only ones.
#   tests/vm/run --disk 64M --env KAERU_BIN=target/debug tests/vm/cases/file-errors.sh
# shellcheck shell=bash source=tests/vm/kaeru.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/kaeru.sh"

one_host
start_udev
modprobe loop
mkdir -p /mnt/x /srv/{tmpfs,ext4,big}
sgdisk -n 1:0:+16M -n 2:0:+16M -n 3:0:+16M "$KAERU_VM_DISK" >/dev/null || die 'no partitions'
udevadm settle
if ! { mount -t tmpfs -o size=8M tmpfs /srv/tmpfs && mkfs.ext4 -q "${KAERU_VM_DISK}1" && mount "${KAERU_VM_DISK}1" /srv/ext4 &&
    mount -t tmpfs tmpfs /srv/big; }; then die 'no file systems'; fi
truncate -s 32M /srv/big/{short,locked,loop}
head -c 32M /dev/urandom >/srv/big/locked
chmod 400 /srv/big/locked
serve --file tmpfs=/srv/tmpfs/image,create=64M --file ext4=/srv/ext4/image,create=64M \
    --file buffered=/srv/ext4/buffered,create=64M,direct=off --file good=/srv/big/good,create=64M \
    --file short=/srv/big/short --file locked=/srv/big/locked --file asked=/srv/big/asked,create=16M,ro

# ── No room ──
write() { dd if=/dev/urandom of="$device" bs=1M iflag=fullblock oflag=direct conv=notrunc,nocreat "$@"; }
read_back() { dd if="$device" bs=1M iflag=direct status=none "$@"; }
check 'attach a good export beside it' attach 10.9.0.1/good --device /dev/nbd5
for name in tmpfs ext4 buffered; do
    fabric=verbs
    [ $name != ext4 ] || fabric=tcp
    check "$name: attach over $fabric" attach 10.9.0.1/$name --fabric $fabric --device /dev/nbd0
    check "$name: what there is room for is written" write count=2
    read_back count=2 >/run/before
    check "$name: more than there is room for is an error" refuses rror write seek=2 count=60
    check "$name: what was written before is as it was" cmp -n 2M "$device" /run/before
    # Data and messages of one full file system must not be in the way of other exports.
    check "$name: the other export goes on" fio --name=good --filename=/dev/nbd5 --direct=1 --ioengine=libaio --rw=randrw \
        --bs=16k --size=2m --iodepth=16 --verify=crc32c --verify_fatal=1
    check "$name: what has its room can be written again" write count=2
    check "$name: a flush works" blockdev --flushbufs "$device"
    check "$name: and so does fsync" write count=1 conv=notrunc,nocreat,fsync
    kaeru detach /dev/nbd0 >/dev/null
    kaeru nbd 10.9.0.1/$name --fabric $fabric --socket /run/full.sock >/run/nbd.log 2>&1 &
    wait_for 20 test -S /run/full.sock
    fill() { head -c 60M /dev/zero | tr '\0' '\1' | nbdcopy - 'nbd+unix:///?socket=/run/full.sock'; }
    check "$name: a client is told that there is no room" refuses 'No space left' fill
    kaeru detach --force 10.9.0.1/$name >/dev/null
    check "$name: attach again" attach 10.9.0.1/$name --fabric $fabric --device /dev/nbd0
    check "$name: blkdiscard makes room" blkdiscard -f "$device"
    check "$name: which is used" write seek=40 count=2
    check "$name: the server is alive" kill -0 "$server"
    check "$name: detach" kaeru detach /dev/nbd0
    rm -f /run/full.sock
done
kaeru detach --all >/dev/null

# ── A file that is cut short under a running server ──
check 'short: attach' attach 10.9.0.1/short --fabric verbs
check 'short: it is filled' write count=32
truncate -s 12M /srv/big/short
check 'short: what is left can be read' cmp -n 12M <(read_back count=12) /srv/big/short
check 'short: what is gone gives an I/O error' refuses 'nput/output error' read_back skip=16 count=1
check 'short: and so does a read across the end' refuses 'nput/output error' dd if="$device" bs=256k skip=47 count=2 iflag=direct
check 'short: what is left can still be read' read_back count=12
check 'short: and written' write seek=4 count=1
check 'short: the server is alive' kill -0 "$server"
check 'short: it says what happened' grep -q 'ends before its size of 33554432 bytes' /run/kaerud.log
truncate -s 32M /srv/big/short
check 'short: with its size it reads to the end' read_back skip=31 count=1
check 'short: detach' kaeru detach --all

# ── Read-only ──
for name in locked asked; do
    check "$name: ls says that it is read-only" says 'read-only' "$(kaeru ls 10.9.0.1 | grep "^$name ")"
    check "$name: attach" attach 10.9.0.1/$name --read-only
    check "$name: the device is read-only" [ "$(blockdev --getro "$device")" = 1 ]
    check "$name: it is what the file is" cmp "$device" /srv/big/$name
    check "$name: detach" kaeru detach --all
    check "$name: attach to write" attach 10.9.0.1/$name
    check "$name: it is said that it is read-only" says ', read-only' "$(</run/attach.log)"
    check "$name: the kernel knows it" [ "$(blockdev --getro "$device")" = 1 ]
    check "$name: and so does status" status_is '.read_only == true'
    check "$name: detach that, too" kaeru detach --all
done

# ── In use ──
# refuses_export PART ARGUMENT...: a second server does not start, and says PART.
refuses_export() { refuses "$1" timeout 60 "$KAERU_BIN/kaerud" --listen 127.0.0.1 "${@:2}"; }
# takes_export ARGUMENT...: it does start.
takes_export() {
    timeout 60 "$KAERU_BIN/kaerud" --listen 127.0.0.1 "$@" >/run/other.log 2>&1 &
    local pid=$! status=0
    wait_for 30 grep -qx ready /run/other.log || status=1
    kill "$pid"
    wait "$pid"
    cat /run/other.log
    return "$status"
}
check 'a file that a server has is refused with its process' refuses_export "$server (kaerud)" --file x=/srv/big/good
check 'a mounted partition is refused with its mount point' refuses_export /srv/ext4 --disk "x=${KAERU_VM_DISK}1"
check 'and so is its disk' refuses_export "${KAERU_VM_DISK}1 is mounted on /srv/ext4" --disk "x=$KAERU_VM_DISK"
check 'and to read it only does not help' refuses_export /srv/ext4 --disk "x=${KAERU_VM_DISK}1,ro"
check '--force takes it' takes_export --disk "x=${KAERU_VM_DISK}1" --force x
check 'and so does the option' takes_export --disk "x=${KAERU_VM_DISK}1,force"
check 'another partition of that disk is free' takes_export --disk "x=${KAERU_VM_DISK}2"
# Killed in the middle of a write, its rings hold the disk for a moment longer than the process lives.
"$KAERU_BIN/kaerud" --listen 127.0.0.1:17421 --disk "x=${KAERU_VM_DISK}2" >/run/killed.log 2>&1 &
killed=$!
wait_for 30 grep -qx ready /run/killed.log
check 'attach a disk whose server will be killed' attach 127.0.0.1:17421/x
write count=16 >/run/write.log 2>&1 &
writing=$!
nap 0.1
kill -9 "$killed"
check 'a disk whose server was killed can be served again at once' takes_export --disk "x=${KAERU_VM_DISK}2"
wait "$writing"
kaeru detach --force "$device" >/dev/null 2>&1
loop=$(losetup -f --show /srv/big/loop)
check 'a file behind a loop device is refused with the device' refuses_export "$loop" --file x=/srv/big/loop
mkfs.ext4 -q "$loop" && mount "$loop" /mnt/x
check 'a mounted loop device is refused with its mount point' refuses_export /mnt/x --disk "x=$loop"
umount /mnt/x
check 'and taken once it is unmounted' takes_export --disk "x=$loop"
losetup -d "$loop"
mkswap -q "${KAERU_VM_DISK}3" && swapon "${KAERU_VM_DISK}3"
check 'what is swapped to is refused as such' refuses_export 'used as swap' --disk "x=${KAERU_VM_DISK}3"
swapoff "${KAERU_VM_DISK}3"
check 'a disk is no file' refuses_export --disk --file "x=${KAERU_VM_DISK}3"
check 'a file is no disk' refuses_export --file --disk x=/srv/big/asked
check 'attach the good export again' attach 10.9.0.1/good
mkfs.ext4 -q "$device" && mount "$device" /mnt/x
check 'a mounted device of ours is refused as well' refuses_export /mnt/x --disk "x=$device"
umount /mnt/x
check 'detach at the end' kaeru detach --all
check 'nothing is left at the end' nothing_left
check 'the server stops with status 0' stop_server
finish
