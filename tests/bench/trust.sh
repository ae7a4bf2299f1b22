#!/usr/bin/env bash
# Whether kaeru-bench can be trusted: in virtual time, where one instruction is one nanosecond and nothing else runs, its
# figures stand beside those of perftest on the same link and of fio on the same device.
#
#   tests/vm/run --icount --timeout 1500 --env KAERU_BIN="$PWD/target/release" tests/bench/trust.sh
#
# The rung fabric within 10 % of perftest at 8 B, 4 KiB and 64 KiB; the rung device within 5 % of fio.
#
# A write of ours is one WRITE and its acknowledgement. ib_write_bw with one write under way does the same. ib_write_lat
# bounces a write between two programs and prints half of that. On this one CPU nothing overlaps: the bounce takes the
# time of two writes and of both acknowledgements, so half of it is a whole write of ours. (Over a cable the
# acknowledgement of one write travels together with the next one; half of a write of ours is nearer there.)
# hand_over.c says how the two programs, which spin, share the CPU.
#
# With 16 under way, what fio itself spends on an operation keeps the one CPU from the rest; so it is told to spend as
# little as it can: no submission latencies, registered files and buffers.
#
# Means are compared: on one CPU a timer's tick lands in some operations, and that is part of the path.
# shellcheck source=tests/vm/kaeru.sh
. "$KAERU_VM/kaeru.sh"

one_host
say "the clock of this kernel: $(</sys/devices/system/clocksource/clocksource0/current_clocksource)"
serve --ram scratch=64M
count=${KAERU_TRUST_COUNT:-400}
# Per cent between the rung fabric and perftest.
most=${KAERU_TRUST_FABRIC:-10}

# bench ARGUMENT...: kaeru-bench's one result; sets `mean` (µs), `median` (µs) and `iops`.
bench() {
    local said
    said=$("$KAERU_BIN/kaeru-bench" run --json --repeat 1 --warm-up 50ms "$@") || return 1
    read -r mean median iops < <(jq -r '.results[0].all | "\(.latency_us.mean) \(.latency_us.p50) \(.iops)"' <<<"$said")
    errors=$(jq '[.results[].all.errors] | add' <<<"$said")
    [ "$errors" = 0 ]
}

# What perftest's programs are started by, if by anything.
launcher=()

# perftest PROGRAM SIZE FLAG...: sets `said` to its lines of figures.
perftest_says() {
    local program=$1 size=$2 peer
    shift 2
    "${launcher[@]}" "$program" -d rxe0 -x 1 -n "$count" -s "$size" -F "$@" >/dev/null 2>&1 &
    peer=$!
    wait_for 20 listens 18515 || return 1
    said=$("${launcher[@]}" "$program" -d rxe0 -x 1 -n "$count" -s "$size" -F "$@" 10.9.0.1 2>&1) || {
        say "$said"
        return 1
    }
    wait "$peer"
}

# perftest PROGRAM SIZE FLAG...: sets `typical` and `average` (µs) to what it prints for that size.
perftest() {
    local said
    perftest_says "$@" || return 1
    read -r typical average < <(awk -v size="$2" '$1 == size { print $5, $6 }' <<<"$said")
    [ -n "$average" ]
}

# write_bw SIZE: sets `average` (µs) from the rate of ib_write_bw with one write under way; it is printed in millions.
write_bw() {
    local said
    perftest_says ib_write_bw "$1" -t 1 -Q 1 -N || return 1
    average=$(awk -v size="$1" '$1 == size && $5 > 0 { printf "%.2f", 1 / $5 }' <<<"$said")
    [ -n "$average" ]
}

# Makes `launcher` one for programs that spin: see hand_over.c. What the kernel does for them later must come first.
share_the_cpu() {
    local here
    here=$(dirname "${BASH_SOURCE[0]}")
    cc -O2 -shared -fPIC -o /run/hand_over.so "$here/hand_over.c" -ldl || return 1
    chrt --fifo --pid 50 "$(pgrep -x ksoftirqd/0)" && sysctl -qw kernel.sched_rt_runtime_us=-1 || return 1
    launcher=(env LD_PRELOAD=/run/hand_over.so chrt --rr 10)
}

# near PERCENT OURS THEIRS: no further apart than that.
near() { awk -v most="$1" -v a="$2" -v b="$3" 'BEGIN { d = 100 * (a / b - 1); exit !(d <= most && d >= -most) }'; }
percent() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%+.1f %%", 100 * (a / b - 1) }'; }

# beside NAME PERCENT OURS THEIRS UNIT WHOSE: a line, and a check.
beside() {
    say "$(printf '%-34s kaeru-bench %9s %s  %-15s %9s  %s' "$1" "$3" "$5" "$6" "$4" "$(percent "$3" "$4")")"
    check "$1 is within $2 % of $6" near "$2" "$3" "$4"
}

target=10.9.0.1/scratch

fabric() {
    local size wrote=()
    say 'fabric, polling, mean µs'
    for size in 8 4096 65536; do
        check "ib_read_lat $size" perftest ib_read_lat "$size"
        check "fabric read $size" bench "$target" --count "$count" --fabric verbs --rung fabric --block "$size" --spin always
        say "  medians: ours $median, typical $typical"
        beside "fabric read $size B" "$most" "$mean" "$average" µs ib_read_lat
    done
    for size in 8 4096 65536; do
        check "ib_write_bw $size" write_bw "$size"
        check "fabric write $size" bench "$target" --count "$count" --fabric verbs --rung fabric --block "$size" --spin always --op write --write --yes
        beside "fabric write $size B" "$most" "$mean" "$average" µs 'ib_write_bw -t1'
        wrote[size]=$mean
    done
    check 'ib_read_lat by events' perftest ib_read_lat 4096 -e
    check 'fabric read by events' bench "$target" --count "$count" --fabric verbs --rung fabric --block 4096 --spin 0
    beside 'fabric read 4096 B, by events' 10 "$mean" "$average" µs 'ib_read_lat -e'
    check 'spinning programs share the CPU' share_the_cpu
    for size in 8 4096 65536; do
        check "ib_write_lat $size" perftest ib_write_lat "$size"
        beside "fabric write $size B" "$most" "${wrote[size]}" "$average" µs ib_write_lat
    done
    launcher=()
}

# fio FLAG...: sets `their_mean` (µs) and `their_iops`. Terse version 3: IOPS of reads and writes, then their mean latencies.
fio_says() {
    local said
    # It counts whole milliseconds, so there have to be many.
    said=$(fio --name=x --filename="$device" --direct=1 --size=64m --number_ios=4000 --norandommap --randrepeat=1 --minimal "$@") || return 1
    read -r their_iops their_mean < <(awk -F';' '{ print $8 + $49, $40 + $81 }' <<<"$said")
}

device() {
    local device op yes lean=(--ioengine=io_uring --disable_slat=1 --fixedbufs=1 --registerfiles=1)
    say 'device, past the page cache'
    attach "$target" --fabric verbs --lanes 1 || die 'nothing is attached'
    for op in read write; do
        yes=()
        [ $op = read ] || yes=(--op write --write --yes)
        check "fio $op QD1" fio_says --ioengine=psync --rw=rand$op --bs=4k
        check "device $op QD1" bench --device "$device" --count 4000 "${yes[@]}"
        beside "device 4k $op QD1, mean" 5 "$mean" "$their_mean" µs 'fio psync'
        beside "device 4k $op QD1, rate" 5 "$iops" "$their_iops" IOPS 'fio psync'
        check "fio $op QD16" fio_says "${lean[@]}" --iodepth=16 --rw=rand$op --bs=4k
        check "device $op QD16" bench --device "$device" --count 4000 --depth 16 "${yes[@]}"
        beside "device 4k $op QD16, mean" 5 "$mean" "$their_mean" µs 'fio io_uring'
        beside "device 4k $op QD16, rate" 5 "$iops" "$their_iops" IOPS 'fio io_uring'
    done
    kaeru detach "$device" >/dev/null
}

for part in ${KAERU_TRUST_PARTS:-fabric device}; do "$part"; done
stop_server
finish
