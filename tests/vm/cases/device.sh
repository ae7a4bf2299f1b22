# An export as /dev/nbdN over verbs: sizes, file systems, partitions, a read-only view, data under load.
#   tests/vm/run --env KAERU_BIN=target/debug tests/vm/cases/device.sh
# shellcheck shell=bash source=tests/vm/kaeru.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/kaeru.sh"

one_host
start_udev
odd=$(((16 << 20) + 419))
serve --ram scratch=320M --ram disk=96M --ram "odd=$odd"
mkdir -p /mnt/x

# ── What a device looks like ──
check 'attach gives a device' attach 10.9.0.1/scratch || finish
check 'it is a block device' [ -b "$device" ]
check 'it has the size of the export' [ "$(size_of "$device")" = $((320 << 20)) ]
check 'attach says fabric and reason' says 'over verbs' "$(</run/attach.log)"
check 'large requests are allowed' [ "$(cat "/sys/block/${device#/dev/}/queue/max_sectors_kb")" -ge 1024 ]
check 'status tells the device and its target' status_is '.device == "/dev/nbd0" and .target == "10.9.0.1/scratch"'
check 'status tells size and mode' status_is ".size == $((320 << 20)) and .read_only == false and .state == \"ok\""
check 'status tells fabric, reason, lanes and process' status_is \
    '.fabric == "verbs" and (.fabric_reason | contains("rxe0")) and .lanes >= 1 and .pid > 1'
check 'status for people works' says 'is ok' "$(kaeru status)"
check 'a second writer is refused with the name of the first' refuses "$(hostname)" kaeru attach 10.9.0.1/scratch

# ── XFS, and detaching what is in use ──
check 'mkfs.xfs' mkfs.xfs -q "$device"
check 'mount xfs' mount "$device" /mnt/x
check 'a tree is copied to xfs' cp -r "$tree" /mnt/x/tree
check 'a mounted device stays, and the mount point is named' refuses /mnt/x kaeru detach "$device"
check 'it still works after that' ls /mnt/x/tree
check 'umount xfs' umount /mnt/x
check 'detach' kaeru detach "$device"
check 'the device is empty' [ "$(cat /sys/block/nbd0/size)" = 0 ]
check 'nothing is left' nothing_left
check 'attach by the same name again' attach 10.9.0.1/scratch
check 'mount xfs again' mount "$device" /mnt/x
check 'the tree is the same' same_tree /mnt/x/tree
check 'what was counted shows in status' status_is '.io.reads > 0 and .io.bytes_read > 0 and .io.errors == 0'
check 'a mounted device is detached by force' within 20 kaeru detach --force "$device"
check 'its file system answers with errors' refuses 'rror' \
    dd if=/mnt/x/tree/nl80211.h of=/dev/null bs=4k iflag=direct
umount /mnt/x
check 'attach after a forced detach' within 10 attach 10.9.0.1/scratch
check 'mount xfs after a forced detach' mount "$device" /mnt/x
check 'the tree is still the same' same_tree /mnt/x/tree
umount /mnt/x
check 'xfs_repair finds nothing' xfs_repair -n "$device"
check 'detach by the name of the export' kaeru detach 10.9.0.1/scratch

# ── Partitions ──
check 'attach to a device of my choice' attach 10.9.0.1/disk --device /dev/nbd3
check 'it is that device' [ "$device" = /dev/nbd3 ]
check 'sgdisk makes a partition' sgdisk -n 1:2048:0 /dev/nbd3
check 'its file appears' wait_for 10 test -b /dev/nbd3p1
check 'mkfs.ext4' mkfs.ext4 -q /dev/nbd3p1
check 'mount ext4' mount /dev/nbd3p1 /mnt/x
check 'a tree is copied to ext4' cp -r "$tree" /mnt/x/tree
check 'a mounted partition holds its device' refuses /mnt/x kaeru detach /dev/nbd3
check 'umount ext4' umount /mnt/x
check 'detach a partitioned device' kaeru detach /dev/nbd3
check 'its partitions are gone' [ ! -e /dev/nbd3p1 ]
attach_and_mount() { kaeru attach 10.9.0.1/disk --device /dev/nbd3 && mount /dev/nbd3p1 /mnt/x; }
has_type() { [ "$(udevadm info -q property --property=ID_FS_TYPE --value /dev/nbd3p1)" = ext4 ]; }
for round in 1 2 3 4 5; do
    check "a partition can be mounted as soon as attach returns, round $round" attach_and_mount
    check "udev knows its file system, round $round" has_type
    [ "$round" != 1 ] || check 'the tree on the partition is the same' same_tree /mnt/x/tree
    umount /mnt/x
    check "detach, round $round" kaeru detach /dev/nbd3
done
check 'attach names the partitions' says /dev/nbd3p1 "$(kaeru attach 10.9.0.1/disk --device /dev/nbd3 2>/dev/null)"
check 'fsck.ext4 finds nothing' fsck.ext4 -fn /dev/nbd3p1
check 'detach the partitioned device for good' kaeru detach /dev/nbd3

# ── Read-only, and a size that is no multiple of a block ──
check 'attach read-only' attach 10.9.0.1/scratch --read-only
check 'the device is read-only' [ "$(blockdev --getro "$device")" = 1 ]
check 'writing is refused' refuses '' dd if=/dev/zero of="$device" bs=4k count=1 oflag=direct conv=notrunc
check 'reading works' dd if="$device" of=/dev/null bs=64k count=16 iflag=direct
check 'status says read-only' status_is '.read_only == true'
check 'detach the read-only device' kaeru detach "$device"
check 'attach an odd size' attach 10.9.0.1/odd
check 'the exact size is said' says $odd "$(</run/attach.log)"
check 'what cannot be reached is said' says 419 "$(</run/attach.log)"
check 'the device ends at a whole block' [ "$(size_of "$device")" = $((16 << 20)) ]

# ── Load ──
kaeru detach --all
check 'attach with four lanes' attach 10.9.0.1/scratch --lanes 4
check 'four lanes are open' status_is '.lanes == 4'
check 'random reads and writes at depth 32 verify' fio --name=mix --filename="$device" --direct=1 --ioengine=libaio \
    --rw=randrw --bsrange=4k-256k --iodepth=32 --size=24m --verify=crc32c --verify_fatal=1
check 'no request failed' status_is '.io.errors == 0 and .io.in_flight == 0'
check 'detach --all' kaeru detach --all
# With one CPU the kernel has one queue for a device, so four busy lanes take four connections of another client.
kaeru nbd 10.9.0.1/scratch --fabric verbs --socket /run/s.sock >/run/s.log 2>&1 &
check 'serve on a socket' wait_for 20 test -S /run/s.sock
check 'four lanes verify at depth 32' fio --name=lanes --ioengine=nbd --uri='nbd+unix:///?socket=/run/s.sock' --rw=randrw \
    --bsrange=4k-64k --iodepth=32 --numjobs=4 --size=4m --offset_increment=8m --verify=crc32c --verify_fatal=1
check 'all four were open' status_is '.lanes >= 4 and .fabric == "verbs" and .io.errors == 0'
check 'end the socket' kaeru detach --all
check 'nothing is left at the end' nothing_left
check 'the server stops with status 0' stop_server
finish
