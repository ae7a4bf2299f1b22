# Files and disks as exports: file systems, load, discarding and zeroing, and a second reader that sees the same bytes.
#   tests/vm/run --disk 768M --env KAERU_BIN=target/debug tests/vm/cases/files.sh
# shellcheck shell=bash source=tests/vm/kaeru.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/kaeru.sh"

one_host
start_udev
modprobe -a loop btrfs
mkdir -p /mnt/x /srv/{ext4,xfs,tmpfs}
sgdisk -n 1:0:+200M -n 2:0:+320M -n 3:0:+48M "$KAERU_VM_DISK" >/dev/null || die 'no partitions'
udevadm settle
if ! { mkfs.ext4 -q "${KAERU_VM_DISK}1" && mkfs.xfs -q "${KAERU_VM_DISK}2" && mount "${KAERU_VM_DISK}1" /srv/ext4 &&
    mount "${KAERU_VM_DISK}2" /srv/xfs && mount -t tmpfs tmpfs /srv/tmpfs; }; then die 'no file systems'; fi
truncate -s 48M /srv/tmpfs/loop
loop=$(losetup -f --show /srv/tmpfs/loop) || die 'no loop device'
serve --file ext4=/srv/ext4/image,create=128M --file xfs=/srv/xfs/image,create=48M,direct=on \
    --file tmpfs=/srv/tmpfs/image,create=320M --disk "virtio=${KAERU_VM_DISK}3" --disk "loop=$loop,block=4096"
cat /run/kaerud.log
for name in ext4 xfs virtio loop; do
    check "$name is reached by io_uring and around the page cache" grep -q "export $name: .*(uring, direct)" /run/kaerud.log
done

# What holds the bytes of each export, and the file whose room tells how much they take.
declare -A backing=(
    [ext4]=/srv/ext4/image [xfs]=/srv/xfs/image [tmpfs]=/srv/tmpfs/image [virtio]=${KAERU_VM_DISK}3 [loop]=$loop
)
declare -A room=([ext4]=/srv/ext4/image [xfs]=/srv/xfs/image [tmpfs]=/srv/tmpfs/image [loop]=/srv/tmpfs/loop)
tree=/usr/include/linux/netfilter

# kib_of EXPORT: what it takes. ext4 and xfs may keep a block for the list of extents.
kib_of() {
    sync "${backing[$1]}"
    say $(($(stat -c %b "${room[$1]}") / 2))
}
takes_nothing() { [ "$(kib_of "$1")" -le 8 ] || { kib_of "$1" && return 1; }; }
took_less() { [ "$(kib_of "$1")" -le $(($2 - $3)) ] || { say "$2 before, now $(kib_of "$1")" && return 1; }; }

# zeroes FROM COUNT, ones FROM COUNT: those MiB of the device are all zeroes, or all 0xff, past every cache.
zeroes() { dd if="$device" bs=1M skip="$1" count="$2" iflag=direct status=none | cmp -n $(($2 << 20)) - /dev/zero; }
ones() {
    dd if="$device" bs=1M skip="$1" count="$2" iflag=direct status=none |
        cmp - <(head -c $(($2 << 20)) /dev/zero | tr '\0' '\377')
}
write_ones() { head -c $(($2 << 20)) /dev/zero | tr '\0' '\377' | dd of="$device" bs=1M seek="$1" iflag=fullblock oflag=direct conv=notrunc status=none; }

# check_file_system EXPORT KIND FABRIC OTHER: made over one fabric, seen over the other.
check_file_system() {
    local name=$1 find
    case $2 in
        ext4) find=(fsck.ext4 -fn) ;;
        xfs) find=(xfs_repair -n) ;;
        btrfs) find=(btrfs check --readonly) ;;
    esac
    check "$name: attach over $3" attach "10.9.0.1/$name" --fabric "$3" --lanes 4 || finish
    check "$name: mkfs.$2" "mkfs.$2" -q "$device"
    check "$name: mount" mount "$device" /mnt/x
    check "$name: a tree is copied" cp -r "$tree" /mnt/x/tree
    check "$name: umount" umount /mnt/x
    check "$name: detach" kaeru detach "$device"
    check "$name: attach over $4" attach "10.9.0.1/$name" --fabric "$4" --lanes 4
    check "$name: mount over $4" mount "$device" /mnt/x
    check "$name: the tree is the same" same_tree /mnt/x/tree
    check "$name: umount over $4" umount /mnt/x
    check "$name: ${find[0]} finds nothing" "${find[@]}" "$device"
}

check_load() {
    check "$1: random reads and writes at depth 32 verify" fio --name=mix --filename="$device" --direct=1 --ioengine=libaio \
        --rw=randrw --bsrange=4k-256k --iodepth=32 --size=6m --verify=crc32c --verify_fatal=1
    check "$1: no request failed" status_is '.io.errors == 0 and .io.in_flight == 0 and .lanes == 4'
}

# Discarding gives back room; what is discarded and nothing else reads as zeroes.
check_discard() {
    local before=0
    check "$1: blkdiscard of all" blkdiscard -f "$device"
    check "$1: it reads as zeroes" zeroes 0 12
    [ -z "${room[$1]:-}" ] || check "$1: and takes no room" takes_nothing "$1"
    check "$1: 8 MiB are written" write_ones 4 8
    [ -z "${room[$1]:-}" ] || before=$(kib_of "$1")
    check "$1: blkdiscard of 2 MiB" blkdiscard -o 6M -l 2M "$device"
    check "$1: they read as zeroes" zeroes 6 2
    check "$1: what is before them is as it was" ones 4 2
    check "$1: and what is behind them" ones 8 4
    [ -z "${room[$1]:-}" ] || check "$1: their room is given back" took_less "$1" "$before" 2048
}

# This kernel's nbd driver writes zeroes as data; other clients ask for them. punched: what it refuses changes nothing.
check_zeroes() {
    local uri="nbd+unix:///?socket=/run/$1.sock"
    punched() { if fallocate -p -o 11M -l 1M "$device"; then zeroes 11 1; else ones 11 1; fi; }
    check "$1: blkdiscard -z" blkdiscard -z -o 8M -l 1M "$device"
    check "$1: fallocate -z" fallocate -z -o 9M -l 1M "$device"
    check "$1: both read as zeroes" zeroes 8 2
    check "$1: and the next MiB does not" ones 10 1
    check "$1: fallocate -p works or is refused" punched
    check "$1: detach after zeroing" kaeru detach "$device"
    kaeru nbd "10.9.0.1/$1" --fabric "$2" --socket "/run/$1.sock" >/run/nbd.log 2>&1 &
    check "$1: serve on a socket over $2" wait_for 20 test -S "/run/$1.sock"
    ask() {
        qemu-io -f raw -c 'write -z 4608k 256k' -c 'write -z -u 5M 512k' -c 'discard 5632k 256k' \
            -c 'write -z -f 10486272 525312' "$uri"
    }
    check "$1: qemu-io zeroes with and without a hole, and discards" ask
    # has ZEROES ONES: ranges, each as "OFFSET LENGTH".
    has() { qemu-io -r -f raw -c "read -P 0 $1" -c "read -P 255 $2" "$uri"; }
    check "$1: without a hole it is zeroes, and before it is not" has '4608k 256k' '4M 512k'
    check "$1: with a hole it is zeroes, and before it is not" has '5M 512k' '4864k 256k'
    check "$1: discarded it is zeroes, and behind it is not" has '5632k 256k' '5888k 256k'
    check "$1: an odd range is zeroes, and the sector before it is not" has '10486272 525312' '10485760 512'
    check "$1: nor the sector behind it" has '10486272 525312' '11011584 512'
    check "$1: four lanes verify at depth 32" fio --name=lanes --ioengine=nbd --uri="$uri" --rw=randrw \
        --bsrange=4k-64k --iodepth=32 --numjobs=4 --size=1m --offset_increment=2m --verify=crc32c --verify_fatal=1
    check "$1: the socket ends" kaeru detach --all
}

# A reader, by the device over one fabric and by a socket over the other, has what the backing file has.
check_reader() {
    local uri="nbd+unix:///?socket=/run/$1-ro.sock"
    check "$1: attach read-only over $2" attach "10.9.0.1/$1" --read-only --fabric "$2"
    kaeru nbd "10.9.0.1/$1" --read-only --fabric "$3" --socket "/run/$1-ro.sock" >/run/nbd.log 2>&1 &
    check "$1: a second reader over $3" wait_for 20 test -S "/run/$1-ro.sock"
    check "$1: it is not all zeroes" refuses differ cmp -n 24M "${backing[$1]}" /dev/zero
    check "$1: the device over $2 has what is stored" cmp -n 24M "$device" "${backing[$1]}"
    same_by_socket() { nbdcopy "$uri" - | cmp -n 24M - "${backing[$1]}"; }
    check "$1: the socket over $3 has it, too" same_by_socket "$1"
    check "$1: both are detached" kaeru detach --all
}

sector_is() { [ "$(blockdev --getss "$device")" = "$1" ]; }
for round in 'ext4 btrfs verbs tcp 512' 'xfs ext4 tcp verbs 512' 'tmpfs xfs verbs tcp 512' 'virtio ext4 tcp verbs 512' \
    'loop ext4 verbs tcp 4096'; do
    read -r name kind fabric other block <<<"$round"
    check_file_system "$name" "$kind" "$fabric" "$other"
    check "$name: blocks of $block bytes" sector_is "$block"
    check_load "$name"
    check_discard "$name"
    check_zeroes "$name" "$fabric"
    check_reader "$name" "$fabric" "$other"
    say "       at $(uptime_s) s"
done
check 'nothing is left at the end' nothing_left
check 'the server stops with status 0' stop_server
finish
