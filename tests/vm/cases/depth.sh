# Many requests at once on servers that answer few reads at once: the right bytes, and nothing refused on the wire.
#   tests/vm/run --env KAERU_BIN=target/debug tests/vm/cases/depth.sh
# shellcheck shell=bash source=tests/vm/kaeru.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/kaeru.sh"

one_host

# What counts refusals: a packet out of sequence, a sequence error reported back, a receiver that was not ready, retries
# that ran out. (duplicate_request and completer_retry_err count repetitions, which a slow machine causes by itself.)
counters=/sys/class/infiniband/rxe0/ports/1/hw_counters
refusals=(out_of_seq_request rcvd_seq_err rcvd_rnr_err send_rnr_err retry_exceeded_err retry_rnr_exceeded_err send_err)
count_refusals() {
    local name
    for name in "${refusals[@]}"; do
        say "$name $(<"$counters/$name")"
    done
}
missing() { ls "$counters" && cat "${refusals[@]/#/$counters/}"; }
check 'the card counts what it refuses' missing || finish

for depth in 1 4 16; do
    serve --ram x=64M --responder-depth "$depth"
    kaeru nbd 10.9.0.1/x --fabric verbs --socket "/run/x$depth.sock" >/run/x.log 2>&1 &
    client=$!
    check "a client of a server with responder depth $depth" wait_for 20 test -S "/run/x$depth.sock"
    before=$(count_refusals)
    check "256 requests at once at depth $depth" fio --name=deep --ioengine=nbd \
        --uri="nbd+unix:///?socket=/run/x$depth.sock" --rw=randrw --bsrange=4k-32k --size=16m --iodepth=256 \
        --verify=crc32c --verify_fatal=1
    check "nothing was refused at depth $depth" [ "$(count_refusals)" = "$before" ]
    kill "$client"
    wait "$client"
    stop_server
done
finish
