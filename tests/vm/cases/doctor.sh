# What kaeru-doctor says of a machine without any RDMA device, and of one with Soft-RoCE: every line is true.
#   tests/vm/run --env KAERU_BIN=target/debug tests/vm/cases/doctor.sh
# shellcheck shell=bash source=tests/vm/kaeru.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/kaeru.sh"

# examine STATUS [ARGUMENT...]: runs the doctor, as $as if that is set; it ends with that status, its words are in `words`.
as=()
examine() {
    local wanted=$1 status=0
    shift
    words=$("${as[@]}" "$KAERU_BIN/kaeru-doctor" -v "$@") || status=$?
    say "$words"
    [ $status = "$wanted" ]
}
# told LEVEL TEXT: there is a finding of that level that begins so, on however many lines.
told() {
    say "$words"
    tr -s ' \n' '  ' <<<"$words" | grep -qF -- " $1 $2"
}
modules() { cut -d ' ' -f 1 /proc/modules | sort; }

before=$(modules)
check 'without a device it warns' examine 1
check 'and says why' told WARN 'no Mellanox/NVIDIA card on PCI, and no RDMA device'
check 'the NBD driver is not loaded' told note 'the driver of /dev/nbdN is not loaded'
check 'root may lock memory' told ok 'this process may lock memory without a limit'
check 'no module was loaded by looking' [ "$(modules)" = "$before" ]

one_host
check 'with Soft-RoCE nothing is wrong' examine 0
check 'it is called software' told note "rxe0: Soft-RoCE on d0: software RDMA: figures are not a card's"
check 'the port is active' told ok 'rxe0 port 1: active'
check 'its address' told ok 'rxe0 port 1: RoCE v2 at 10.9.0.1'
check 'its packets' told ok 'rxe0 port 1: MTU 4200 of d0 has room for RDMA packets of 4096 bytes'
devinfo=$(ibv_devinfo -d rxe0)
check 'as libibverbs tells' says 'active_mtu:		4096' "$devinfo"
check 'libibverbs has its driver' told ok 'rxe0: libibverbs has a driver for it'
check 'its device file' told ok 'rxe0: /dev/infiniband/uverbs0 may be used'
check 'NBD devices' told ok 'the driver of /dev/nbdN is loaded; 0 of 8 in use'
ceiling='rxe0 port 1: software RDMA: the processors set the limit'
check 'its ceiling is not made up' told note "$ceiling"

as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
limit=$("${as[@]}" bash -c 'ulimit -l')
check 'another user may lock less' examine 1
check 'as the shell says' told WARN "this user may lock $((limit / 1024)) MiB; one lane takes 16 MiB"
check 'nothing is hidden from users' told ok 'not run by root, and no file that was looked at was hidden'
as=()

serve --null x=1M
check 'a server tells of its machine' examine 0 --peer 10.9.0.1
check 'which is this one' told note 'the other machine is this one'
check 'and active' told ok "$(hostname), rxe0 port 1: active"
check 'the server stops' stop_server
check 'a server that is gone is a failure' examine 2 --peer 10.9.0.1
check 'and is named' told FAIL '10.9.0.1: cannot be asked'

ip link set d0 mtu 1500
check 'a smaller MTU is a note' examine 0
check 'and is named' told note 'rxe0 port 1: MTU 1500 of d0 has room for RDMA packets of 1024 bytes'
devinfo=$(ibv_devinfo -d rxe0)
check 'as libibverbs tells then' says 'active_mtu:		1024' "$devinfo"
ip link set d0 down
check 'a port that is down is a failure' examine 2
check 'and is named' told FAIL 'rxe0 port 1: no link'
finish
