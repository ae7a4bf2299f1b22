#!/usr/bin/env bash
# Path lengths in virtual time: /dev/nbd0 over verbs (Soft-RoCE) and tcp, measured by fio inside the guest, where one
# instruction is one nanosecond. Repeats to within a percent and does not care what else the machine does.
#
#   tests/vm/run --icount --timeout 900 --env KAERU_BIN="$PWD/target/release" tests/bench/virtual.sh
#
# On one CPU the numbers are those of client, server, kernel and Soft-RoCE together. NVMe-oF over RDMA to a RAM disk is
# measured in the same run, so that ratios can be read off. Soft-RoCE does the card's work in software, and copies count
# by the instruction: this compares paths, not cards. KAERU_BENCH_FABRICS="verbs tcp nvmf" chooses.
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

# NVMe-oF over RDMA: a RAM disk of the kernel, exported and attached by the kernel. Sets device.
nvmf_attach() {
    local target=/sys/kernel/config/nvmet name=nqn.2026-11.kaeru:bench
    modprobe brd rd_nr=1 rd_size=65536
    modprobe -a nvmet nvmet-rdma nvme-rdma
    mkdir -p "$target/subsystems/$name/namespaces/1" "$target/ports/1"
    echo 1 >"$target/subsystems/$name/attr_allow_any_host"
    echo -n /dev/ram0 >"$target/subsystems/$name/namespaces/1/device_path"
    echo 1 >"$target/subsystems/$name/namespaces/1/enable"
    echo 10.9.0.1 >"$target/ports/1/addr_traddr"
    echo rdma >"$target/ports/1/addr_trtype"
    echo 4420 >"$target/ports/1/addr_trsvcid"
    echo ipv4 >"$target/ports/1/addr_adrfam"
    ln -s "$target/subsystems/$name" "$target/ports/1/subsystems/$name"
    nvme connect -t rdma -a 10.9.0.1 -s 4420 -n "$name" -i 1 \
        --hostnqn nqn.2014-08.org.nvmexpress:uuid:6b616572-7500-4000-8000-000000000001 \
        --hostid 6b616572-7500-4000-8000-000000000001 >/dev/null
    device=/dev/nvme0n1
    wait_for 10 test -b "$device"
}

"$bin/kaerud" --ram scratch=64M --listen 10.9.0.1 --insecure >/dev/null &
wait_for 10 "$bin/kaeru" ls 10.9.0.1 >/dev/null
for fabric in ${KAERU_BENCH_FABRICS:-verbs tcp nvmf}; do
    if [ "$fabric" = nvmf ]; then
        nvmf_attach
        all "$fabric"
        nvme disconnect -d "$device" >/dev/null
        continue
    fi
    # shellcheck disable=SC2086 # several flags
    device=$("$bin/kaeru" attach 10.9.0.1/scratch --fabric "$fabric" --lanes 1 ${KAERU_BENCH_ATTACH:-} 2>/dev/null | head -1)
    check "a device over $fabric" test -b "$device"
    all "$fabric"
    "$bin/kaeru" detach "$device" >/dev/null
done
finish
