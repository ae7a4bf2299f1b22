#!/usr/bin/env bash
# File exports against others, natively and in one run: fio's io_uring engine on the file itself, qemu-nbd, nbdkit's file
# plugin, and kaerud with `kaeru nbd`, all serving the same file. Every server is measured by the same fio over NBD on a
# Unix socket, past the page cache (direct) and through it (cached).
#
#   tests/bench/files.sh [SECONDS-EACH]
#
# Prints a table with the ratios to qemu-nbd of the same kind. The numbers of a row belong to one run on one machine; those
# of busy or virtual machines wander, so each measurement is repeated (KAERU_BENCH_ROUNDS, 3) by turns and its median taken.
# KAERU_BIN is the folder of kaerud and kaeru (target/release), KAERU_BENCH_FOLDER where the file goes, KAERU_BENCH_SIZE
# its size (1G).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds=${1:-3}
rounds=${KAERU_BENCH_ROUNDS:-3}
bin=${KAERU_BIN:-target/release}
size=${KAERU_BENCH_SIZE:-1G}
folder=$(mktemp -d "${KAERU_BENCH_FOLDER:-target}/bench.XXXXXX")
folder=$(realpath "$folder")
socket=$folder/s
export KAERU_RUNTIME_DIR=$folder
running=()

stop_all() {
    local pid
    for pid in "${running[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${running[@]}"; do wait "$pid" 2>/dev/null || true; done
    running=()
}
trap 'stop_all; rm -rf "$folder"' EXIT

for tool in fio qemu-nbd nbdkit "$bin/kaerud" "$bin/kaeru"; do
    command -v "$tool" >/dev/null || {
        echo "files.sh: there is no $tool" >&2
        exit 1
    }
done

# Filled once, so that no reader meets a hole.
fio --name=fill --filename="$folder/file" --size="$size" --rw=write --bs=1M --direct=1 --ioengine=io_uring --iodepth=8 \
    --minimal >/dev/null

start() {
    "$@" >"$folder/log" 2>&1 &
    running+=($!)
}

until_there() {
    for _ in {1..100}; do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.05
    done
    cat "$folder/log" >&2
    exit 1
}

# serve TARGET: starts what serves the file on the socket.
serve() {
    rm -f "$socket"
    case $1 in
        qemu-nbd-direct) start qemu-nbd -f raw -t -e 16 --cache=none --aio=io_uring -k "$socket" "$folder/file" ;;
        qemu-nbd-cached) start qemu-nbd -f raw -t -e 16 --cache=writeback --aio=io_uring -k "$socket" "$folder/file" ;;
        nbdkit-cached) start nbdkit -f -U "$socket" file "$folder/file" ;;
        kaeru-direct) kaeru on ;;
        kaeru-cached) kaeru off ;;
    esac
    until_there test -S "$socket"
}

kaeru() {
    start "$bin/kaerud" --file "x=$folder/file,direct=$1" --listen 127.0.0.1:17499
    until_there "$bin/kaeru" ls 127.0.0.1:17499
    start "$bin/kaeru" nbd 127.0.0.1:17499/x --socket "$socket"
}

# measure TARGET FIO-OPTIONS...: IOPS and bytes a second.
measure() {
    local target=$1
    shift
    case $target in
        file-direct) set -- --ioengine=io_uring --filename="$folder/file" --direct=1 "$@" ;;
        file-cached) set -- --ioengine=io_uring --filename="$folder/file" --direct=0 "$@" ;;
        *) set -- --ioengine=nbd --uri="nbd+unix:///${name[$target]:-}?socket=$socket" "$@" ;;
    esac
    # fio's NBD engine says a word first.
    (cd "$folder" && fio --name=x --size="$size" --time_based --runtime="$seconds" --minimal "$@") | grep '^3;' |
        awk -F';' '{ print $8 + $49, ($7 + $48) * 1024 }'
}

declare -A name=([kaeru-direct]=x [kaeru-cached]=x) result
targets=(file-direct qemu-nbd-direct kaeru-direct file-cached qemu-nbd-cached nbdkit-cached kaeru-cached)
loads=('4k read QD1' '4k write QD1' '4k read QD32' '4k write QD32' '256k read QD8' '256k write QD8')
options=('--rw=randread --bs=4k --iodepth=1' '--rw=randwrite --bs=4k --iodepth=1'
    '--rw=randread --bs=4k --iodepth=32' '--rw=randwrite --bs=4k --iodepth=32'
    '--rw=read --bs=256k --iodepth=8' '--rw=write --bs=256k --iodepth=8')

for ((round = 1; round <= rounds; round++)); do
    for target in "${targets[@]}"; do
        echo "round $round of $rounds: $target" >&2
        case $target in file-*) ;; *) serve "$target" ;; esac
        for load in "${!loads[@]}"; do
            # shellcheck disable=SC2086 # several flags
            result[$target,$load]+="$(measure "$target" ${options[$load]})"$'\n'
        done
        stop_all
    done
done

# figure TARGET LOAD: the median; IOPS of small blocks, MB/s of large ones.
figure() {
    local column=1 unit=1
    case ${loads[$2]} in 256k*) column=2 unit=1000000 ;; esac
    sort -n -k "$column" <<<"${result[$1,$2]%$'\n'}" |
        awk -v column="$column" -v unit="$unit" '{ all[NR] = $column / unit } END { printf "%.0f", all[int((NR + 1) / 2)] }'
}

printf '%-18s' ''
printf '%16s' "${loads[@]}"
printf '\n'
for target in "${targets[@]}"; do
    printf '%-18s' "$target"
    rival=qemu-nbd-${target##*-}
    for load in "${!loads[@]}"; do
        printf '%16s' "$(figure "$target" "$load") ($(awk "BEGIN { printf \"%.2f\", $(figure "$target" "$load") / $(figure "$rival" "$load") }"))"
    done
    printf '\n'
done
echo "IOPS, for 256k MB/s; in brackets the ratio to qemu-nbd of the same kind. Medians of $rounds runs of ${seconds}s each."
