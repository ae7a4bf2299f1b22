# Proves the harness with two hosts: one-sided READs between them, a pulled cable, a barrier without the network.
#   tests/vm/run --hosts 2 tests/vm/smoke-two.sh
# shellcheck shell=bash source=tests/vm/guest.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/guest.sh"

say "script began at $(uptime_s) s"
two_hosts
say "two hosts ready at $(uptime_s) s"

for round in 1 2; do
    if [ "$KAERU_VM_HOST" = a ]; then
        check 'perftest listens' read_lat_server rxe0
        barrier "listening $round"
        check 'perftest served' wait
    else
        barrier "listening $round"
        check "one-sided READs, round $round" read_lat rxe0 "$peer" && say "       4 KiB READ: $microseconds us"
    fi
done

barrier 'cable'
cut_off() { ! reaches "$peer"; }
[ "$KAERU_VM_HOST" = b ] || ip link set eth0 down
barrier 'pulled'
check 'without a cable there is no way' cut_off
barrier 'seen'
[ "$KAERU_VM_HOST" = b ] || ip link set eth0 up
check 'with the cable there is one' wait_for 10 reaches "$peer"
barrier 'end'
say "done at $(uptime_s) s"
finish
