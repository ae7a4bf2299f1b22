# Proves the harness with one host: verbs, /dev/nbdN, partitions, and that nothing is left over.
#   tests/vm/run tests/vm/smoke.sh
# shellcheck shell=bash source=tests/vm/guest.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/guest.sh"

say "kernel $(uname -r), script began at $(uptime_s) s"
one_host
start_udev
say "one host ready at $(uptime_s) s"

second_card
check 'both cards are active' port_active rxe1
before=$(rdma_resources)
say "$before"

one_sided() { read_lat_server rxe0 && read_lat rxe0 10.9.0.1; }
for round in 1 2 3; do
    check "one-sided READs, round $round" one_sided && say "       4 KiB READ: $microseconds us"
done
same_resources() { [ "$(rdma_resources)" = "$before" ]; }
check 'the verbs resources are given back' wait_for 10 same_resources

nbdkit -U /run/smoke.sock memory 64M
check 'nbd-client attaches' nbd-client -unix /run/smoke.sock /dev/nbd0
size_is() { [ "$(cat /sys/block/nbd0/size)" = "$1" ]; }
check 'the device has its size' wait_for 10 size_is 131072
check 'sgdisk makes a partition' sgdisk -n 1:2048:0 /dev/nbd0
check 'udev shows the partition' wait_for 10 test -b /dev/nbd0p1
check 'mkfs' mkfs.ext4 -q /dev/nbd0p1
check 'mount' mount /dev/nbd0p1 /mnt
check 'write' cp "$KAERU_VM/guest.sh" /mnt/
check 'umount' umount /mnt
check 'mount again' mount /dev/nbd0p1 /mnt
check 'read back' cmp "$KAERU_VM/guest.sh" /mnt/guest.sh
check 'umount again' umount /mnt
check 'fsck' fsck.ext4 -fn /dev/nbd0p1
check 'nbd-client detaches' nbd-client -d /dev/nbd0
check 'the device is empty again' wait_for 10 size_is 0
say "done at $(uptime_s) s"
finish
