# What guest scripts are made of. They begin with:  . "$KAERU_VM/guest.sh"
# and end with:  finish
# shellcheck shell=bash
#
# From run, a script has: KAERU_VM (this folder), KAERU_VM_HOST (a or b), KAERU_VM_HOSTS ("a" or "a b"),
# KAERU_VM_SHARE (/share or empty), KAERU_VM_DISK (/dev/vda or empty), KAERU_VM_BOOT (1, and one more after each power
# cut), and what --env gave.

guest_checks=0
guest_failures=0

# A script that forgets finish, or that leaves early, must not hide a failed check.
guest_exit() {
    local status=$?
    [ $guest_failures = 0 ] || [ $status != 0 ] || exit 1
}
trap guest_exit EXIT

say() { printf '%s\n' "$*"; }

# Ends the script as failed.
die() {
    say "FAILED $*"
    exit 1
}

# check DESCRIPTION COMMAND...: counts; says what the command said only if it fails.
check() {
    local description=$1 status=0 said=/run/check.$BASHPID
    shift
    guest_checks=$((guest_checks + 1))
    "$@" >"$said" 2>&1 || status=$?
    if [ $status = 0 ]; then
        say "ok     $description"
    else
        guest_failures=$((guest_failures + 1))
        say "FAILED $description: \`$*\` gave $status"
        tail -n 30 "$said" | sed 's/^/       /'
    fi
    return $status
}

# Ends the script: with 0 if all checks were ok and there was one at least.
finish() {
    [ $guest_checks -gt 0 ] || die 'this script checked nothing'
    if [ $guest_failures -gt 0 ]; then
        say "$guest_failures of $guest_checks checks FAILED"
        exit 1
    fi
    say "all $guest_checks checks ok"
    exit 0
}

# nap SECONDS: sleep(1) without starting a program, which an emulated CPU feels.
exec {guest_silence}<> <(:)
nap() { read -rt "$1" -u "$guest_silence" || true; }

# wait_for SECONDS COMMAND...: until the command succeeds; false if it never did. The command's words are thrown away.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        nap 0.1
    done
}

# uptime_s: seconds since boot with two decimals, to see where the time goes.
uptime_s() {
    local up
    read -r up _ </proc/uptime
    say "$up"
}

guest_modules() {
    modprobe -a rdma_rxe ib_uverbs rdma_ucm "$@" && modprobe nbd max_part=16 nbds_max=8
}

port_active() { [[ $(<"/sys/class/infiniband/$1/ports/1/state") = *ACTIVE ]]; }
reaches() { busybox ping -c 1 -W 1 "$1"; }
listens() { ss -Hltn "sport = :$1" | grep -q .; }

# guest_card RXE NETDEV ADDRESS: Soft-RoCE takes its GID from the address, so that comes first.
guest_card() {
    if ! { ip link set "$2" mtu 4200 && ip addr add "$3" dev "$2" && ip link set "$2" up &&
        rdma link add "$1" type rxe netdev "$2" && wait_for 20 port_active "$1"; }; then
        die "no card $1 on $2"
    fi
}

guest_dummy_card() { ip link add "$2" type dummy && guest_card "$@"; }

# One host with a card rxe0 at 10.9.0.1, and /dev/nbd0 to /dev/nbd7.
one_host() {
    guest_modules dummy || die 'could not load the modules'
    guest_dummy_card rxe0 d0 10.9.0.1/24
}

# Another card for one host: rxe1 at 10.9.1.1.
second_card() { guest_dummy_card rxe1 d1 10.9.1.1/24; }

# Two hosts: a has 10.9.0.1 on eth0, b has 10.9.0.2; each has a card rxe0. Sets `peer` to the other's address.
# Both scripts call it, and go on together. Pull the cable with: ip link set eth0 down
two_hosts() {
    local number=1
    peer=10.9.0.2
    [ "$KAERU_VM_HOST" = a ] || number=2 peer=10.9.0.1
    [ "$KAERU_VM_HOSTS" = 'a b' ] || die 'this script needs run --hosts 2'
    guest_modules virtio_net || die 'could not load the modules'
    wait_for 20 test -e /sys/class/net/eth0 || die 'no eth0'
    guest_card rxe0 eth0 "10.9.0.$number/24"
    barrier two_hosts
    wait_for 10 reaches "$peer" || die "no way to $peer"
}

# barrier NAME [SECONDS]: waits until the other host comes to the barrier of that name; each name once.
# Does not need the network between the two. Fails as soon as the other host is gone.
barrier() {
    local other=b end=$((SECONDS + ${2:-120}))
    [ "$KAERU_VM_HOST" = a ] || other=a
    : >"/run/vm/barrier.$1.$KAERU_VM_HOST"
    until [ -e "/run/vm/barrier.$1.$other" ]; do
        [ ! -e "/run/vm/gone.$other" ] || [ -e "/run/vm/barrier.$1.$other" ] || die "barrier $1: host $other is gone"
        [ $SECONDS -lt $end ] || die "barrier $1: host $other did not come"
        nap 0.05
    done
}

# power_cut HOST: the other host's machine is killed at once, and started again with its disk and its script. Returns
# when it is dead and will come back. Host a holds the cable: only b can be cut.
power_cut() {
    local boot=1
    while [ -e "/run/vm/boot.$1.$((boot + 1))" ]; do boot=$((boot + 1)); done
    # The file may be gone before the shell has opened it.
    { : >"/run/vm/cut.$1"; } 2>/dev/null
    wait_for 20 test -e "/run/vm/boot.$1.$((boot + 1))" || die "no power cut of host $1"
}

# Partitions and by-id links as on a real system.
start_udev() {
    [ ! -e /run/udev/control ] || return 0
    if ! { /lib/systemd/systemd-udevd --daemon >/dev/null 2>&1 &&
        udevadm trigger --action=add --subsystem-match=block && udevadm settle --timeout=30; }; then
        die 'could not start udevd'
    fi
}

# What the verbs objects of this host are, one line a card: compare before and after to find leaks.
rdma_resources() { rdma resource show | sed 's/^[0-9]*: //; s/ *$//'; }

# read_lat_server CARD: the server's side of perftest's read latency, in the background; it ends with its client.
read_lat_server() {
    ib_read_lat -d "$1" -x 1 -n 300 -s 4096 -F >/dev/null 2>&1 &
    wait_for 20 listens 18515
}

# read_lat CARD ADDRESS: the client's side; sets `microseconds` to what a 4 KiB READ typically takes.
read_lat() {
    local said
    said=$(ib_read_lat -d "$1" -x 1 -n 300 -s 4096 -F "$2" 2>&1) || {
        say "$said"
        return 1
    }
    microseconds=$(awk '$1 == 4096 { print $5 }' <<<"$said")
    [ -n "$microseconds" ]
}
