# What goes wrong: killed clients and servers, strangers at the door, devices in use, limits, addresses. Nothing hangs,
# and each error says what was found. And the other way to go wrong: to do nothing, busily.
#   tests/vm/run --env KAERU_BIN=target/debug tests/vm/cases/failures.sh
# shellcheck shell=bash source=tests/vm/kaeru.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/kaeru.sh"

one_host
ip link add plain0 type dummy && ip addr add 10.8.0.1/24 dev plain0 && ip link set plain0 up

# ── Addresses without RDMA ──
# starts_with ARGUMENT...: what a kaerud says that is stopped as soon as it is ready.
starts_with() {
    "$KAERU_BIN/kaerud" "$@" >/run/other.log 2>&1 &
    local pid=$!
    wait_for 30 grep -qx ready /run/other.log
    kill $pid
    wait $pid
    cat /run/other.log
}
said=$(starts_with --ram x=1M)
check 'on loopback, RDMA is not offered, and that is said' says 'verbs: not offered: 127.0.0.1' "$said"
check 'the address that would do is named' says '10.9.0.1 (rxe0)' "$said"
said=$(starts_with --ram x=1M --listen 10.8.0.1 --insecure)
check 'an address without RDMA is named with its interface' says 'plain0' "$said"
check 'and so is the one that would do' says '10.9.0.1 (rxe0)' "$said"
check 'whoever insists on RDMA is refused there' refuses '10.9.0.1 (rxe0)' \
    "$KAERU_BIN/kaerud" --ram x=1M --listen 10.8.0.1 --insecure --fabric verbs

# ── Too little memory to lock ──
limited() {
    setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all --inh-caps -all \
        bash -c "ulimit -l 64 && exec '$KAERU_BIN/kaerud' --ram x=16M"
}
check 'a memory limit that is too low is named' refuses '64 KiB' limited
check 'and so is what is needed' refuses '16 MiB' limited

# ── Strangers ──
serve --ram x=64M --ram y=16M
stranger_by_rdma() { timeout 20 ib_read_lat -R -x 1 -n 5 -F -p 17420 10.9.0.1; }
check 'a stranger at the RDMA port is turned away' refuses '' stranger_by_rdma
stranger_by_tcp() { head -c 65536 /dev/urandom >/dev/tcp/10.9.0.1/17420; }
for _ in 1 2 3; do stranger_by_tcp 2>/dev/null; done
exec {silent}<>/dev/tcp/10.9.0.1/17420
check 'a client attaches meanwhile' within 10 attach 10.9.0.1/x --fabric verbs
exec {silent}>&-

# A lane has 16 MiB of slots; a user may lock 8 MiB at most.
shallow() {
    setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all --inh-caps -all \
        bash -c "ulimit -l 8192 && exec '$KAERU_BIN/kaeru' nbd 10.9.0.1/y --fabric verbs --socket /tmp/shallow" \
        >/run/shallow.log 2>&1 &
    local pid=$!
    wait_for 30 grep -q '^serving' /run/shallow.log
    nbdcopy --request-size=33554432 -- "nbd+unix:///?socket=/tmp/shallow" null:
    local copied=$?
    kill $pid
    wait $pid
    cat /run/shallow.log
    return $copied
}
said=$(shallow)
check 'a client that may lock little memory has a shallow lane over RDMA' says 'over verbs' "$said"
check 'and is told so' says 'slots instead of 128' "$said"

# ── Doing nothing ──
client=$(kaeru status --json | jq '.[0].pid')
nap 1
# A machine that has other things to do makes everything look busy for a while, but not again and again.
idle() {
    local before try used
    for try in 1 2 3 4 5 6; do
        before=$(cpu_ticks "$1")
        nap 5
        used=$(($(cpu_ticks "$1") - before))
        say "try $try: $used hundredths of a second in 5 s"
        [ "$used" -ge 5 ] || return 0
    done
    return 1
}
check 'an idle client uses no CPU' idle "$client"
check 'an idle server uses no CPU' idle "$server"

# ── A killed client ──
check 'mkfs' mkfs.ext4 -q "$device"
# The program that writes gets its error, or it would keep the file system from being unmounted.
kill_and_come_back() {
    client=$(kaeru status --json | jq '.[0].pid')
    kill -KILL "$client"
    within 5 kaeru detach "$device" && ! within 5 wait "$load" && within 5 umount /mnt && within 5 attach 10.9.0.1/x
}
# 1: it was repaired, as after any crash.
whole() { fsck.ext4 -fp "$device" || [ $? = 1 ]; }
for round in 1 2; do
    check "mount, round $round" mount "$device" /mnt
    dd if=/dev/zero of=/mnt/load bs=64k count=700 oflag=direct 2>/run/load.log &
    load=$!
    nap 0.5
    check "a client killed under load is detached and back within 5 s, round $round" within 5 kill_and_come_back
    check "its program got an I/O error, round $round" grep -i 'error\|read-only' /run/load.log
    check "the journal makes it whole, round $round" whole
done
kaeru detach --all

# ── A killed server ──
check 'attach before the server dies' attach 10.9.0.1/x
dd if=/dev/zero of="$device" bs=64k oflag=direct conv=notrunc 2>/run/dd.log &
writer=$!
nap 1
kill -KILL "$server"
wait "$server"

fails_in_time() {
    local start=$SECONDS
    ! wait "$writer" && [ $((SECONDS - start)) -le 10 ] && cat /run/dd.log && grep -i 'input/output error' /run/dd.log
}
check 'a write under way gets an I/O error' fails_in_time
read_fails() { refuses 'nput/output error' timeout 20 dd if="$device" of=/dev/null bs=4k count=1 iflag=direct; }
check 'a new read gets an I/O error, too' within 10 read_fails
check 'status says that the server is lost' status_is '.state == "lost"'
check 'detach works without a server' within 5 kaeru detach "$device"
check 'nothing is left of it' nothing_left
serve --ram x=64M --ram y=16M
check 'with a new server attach works' within 5 attach 10.9.0.1/x
check 'detach from the new server' kaeru detach --all

# ── A device that somebody else holds ──
# shellcheck disable=SC2217 # it is there to hold it open
sleep 100 </dev/nbd0 &
holder=$!
check 'a device in use is refused with the name of its user' refuses 'sleep' kaeru attach 10.9.0.1/x --device /dev/nbd0
check 'another one is taken' attach 10.9.0.1/x
check 'which is not the one in use' [ "$device" != /dev/nbd0 ]
kill $holder
wait $holder 2>/dev/null
kaeru detach --all

# ── The module ──
reload_and_attach() {
    rmmod nbd && modprobe nbd max_part=16 nbds_max=8 && attach 10.9.0.1/x --device /dev/nbd0 && kaeru detach --all
}
start_udev
for round in 1 2 3 4 5 6 7 8 9 10; do
    check "attach right after modprobe, round $round" reload_and_attach
done
rmmod nbd
check 'attach loads the module by itself' attach 10.9.0.1/x
kaeru detach --all

# ── A link that goes down ──
check 'attach before the card goes down' attach 10.9.0.1/x --fabric verbs --timeout 5s
ip link set d0 down
no_hang() { timeout 40 dd if="$device" of=/dev/null bs=4k count=1 iflag=direct || [ $? != 124 ]; }
check 'with its card down a read ends' no_hang
check 'detach works while the card is down' within 20 kaeru detach --force --all
ip link set d0 up
check 'the card is back' wait_for 20 port_active rxe0
# Soft-RoCE sends no connect request any more, for any program, once one was to be sent while its card was down: auto
# has to find another way then, and to say why.
check 'attach works again' within 20 attach 10.9.0.1/x
check 'and says why, if not over verbs' status_is \
    '.fabric == "verbs" or (.fabric_reason | contains("did not answer over verbs"))'
check 'detach at the end' kaeru detach --all
check 'nothing is left at the end' nothing_left
check 'the server stops with status 0' stop_server
finish
