#!/usr/bin/env bash
# Path lengths in virtual time: /dev/nbd0 over verbs (Soft-RoCE) and tcp, measured by fio inside the guest, where one
# instruction is one nanosecond. Repeats to within a percent and does not care what else the machine does.
#
#   tests/vm/run --icount --timeout 900 --env KAERU_BIN="$PWD/target/release" tests/bench/virtual.sh
#
# On one CPU the numbers are those of client, server, kernel and Soft-RoCE together.
. "$KAERU_VM/guest.sh"

one_host
bin=${KAERU_BIN:?set it to the folder of kaerud and kaeru}

# measure NAME FIO-OPTIONS...: a line with IOPS and mean latency.
measure() {
    local name=$1 out
    shift
    out=$(fio --name=x --filename="$device" --direct=1 --ioengine=libaio --size=8m --io_size=8m --minimal "$@")
    # Terse version 3: IOPS of reads and writes, then mean completion latencies in µs.
    awk -F';' -v name="$name" '{ printf "%-24s %8d IOPS  mean %9.1f us\n", name, $8 + $49, $40 + $81 }' <<<"$out"
}

all() {
    measure "$1 4k read QD1" --rw=randread --bs=4k --iodepth=1
    measure "$1 4k write QD1" --rw=randwrite --bs=4k --iodepth=1
    measure "$1 4k read QD16" --rw=randread --bs=4k --iodepth=16
    measure "$1 4k write QD16" --rw=randwrite --bs=4k --iodepth=16
    measure "$1 128k read QD4" --rw=read --bs=128k --iodepth=4
}

"$bin/kaerud" --ram scratch=64M --listen 10.9.0.1 --insecure >/dev/null &
wait_for 10 "$bin/kaeru" ls 10.9.0.1 >/dev/null
for fabric in ${KAERU_BENCH_FABRICS:-verbs tcp}; do
    device=$("$bin/kaeru" attach 10.9.0.1/scratch --fabric "$fabric" --lanes 1 ${KAERU_BENCH_ATTACH:-} | head -1)
    all "$fabric"
    "$bin/kaeru" detach "$device" >/dev/null
done
finish
