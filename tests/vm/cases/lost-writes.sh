# A disk that loses what it was given: whoever asks whether it is safe is told that it is not, all of them, for good.
#   tests/vm/run --env KAERU_BIN=target/debug tests/vm/cases/lost-writes.sh
# shellcheck shell=bash source=tests/vm/kaeru.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/kaeru.sh"

one_host
modprobe loop
mkdir -p /srv/small
mount -t tmpfs -o size=8M tmpfs /srv/small

# lossy ENGINE: serves a disk of 64 MiB, through the page cache, on which 8 MiB can be stored.
lossy() {
    truncate -s 64M /srv/small/back
    loop=$(losetup -f --show /srv/small/back)
    serve --disk "lossy=$loop,direct=off,engine=$1"
}

# Starts `kaeru nbd`; sets `client`. The server may not yet know that an earlier one is gone, or wait for its disk.
open_socket() {
    local try
    rm -f /run/lossy.sock
    for try in {1..30}; do
        "$KAERU_BIN/kaeru" nbd 10.9.0.1/lossy --socket /run/lossy.sock >/run/nbd.log 2>&1 &
        client=$!
        wait_for 20 ended_or_ready && [ -S /run/lossy.sock ] && return
        sleep 0.5
    done
    say "after $try times: $(</run/nbd.log)"
    return 1
}
ended_or_ready() { [ -S /run/lossy.sock ] || ! kill -0 "$client" 2>/dev/null; }

# Ends all of it, and the disk.
sweep() {
    kill "$client" && wait "$client"
    stop_server
    losetup -d "$loop"
    rm -f /srv/small/back
}

nbd() { timeout 60 /usr/bin/python3 -c "import nbd, os, sys, time
uri = 'nbd+unix:///?socket=/run/lossy.sock'
def connect():
    handle = nbd.NBD()
    handle.connect_uri(uri)
    return handle
def flush(handle):
    try:
        handle.flush()
        return 'safe'
    except nbd.Error:
        return 'lost'
def fill(handle):
    block = b'\xab' * (128 << 10)
    for offset in range(0, 32 << 20, len(block)):
        handle.pwrite(block, offset)
$1" "${@:2}"; }

# Four connections, four lanes, one file: the kernel tells only one of the flushes.
together() {
    nbd "
handles = [connect() for _ in range(4)]
fill(handles[0])
told, cookies = {}, {handle: handle.aio_flush() for handle in handles}
while len(told) < 4:
    for handle in handles:
        try:
            if handle not in told and handle.aio_command_completed(cookies[handle]):
                told[handle] = 'safe'
        except nbd.Error:
            told[handle] = 'lost'
        if handle not in told:
            handle.poll(1)
print('at once:', *told.values(), ' later:', *map(flush, handles))"
}

for engine in uring file; do
    check "$engine: the export" lossy $engine
    check "$engine: the socket" open_socket
    check "$engine: of flushes at once none says that it is safe" says 'at once: lost lost lost lost  later: lost lost lost lost' "$(together)"
    check "$engine: the server says what happened" grep -q 'could not store what was written' /run/kaerud.log
    check "$engine: and so does ls" says 'answered writes may be lost' "$(kaeru ls 10.9.0.1)"
    sweep
done

# The client dies while its flush is in the kernel, which tells of the loss in answer to that one only.
flush_and_die() {
    nbd "
handle = connect()
fill(handle)
handle.aio_flush()
time.sleep(float(sys.argv[2]))
os.kill(int(sys.argv[1]), 9)" "$client" "$1"
    wait "$client" 2>/dev/null
    return 0
}
for delay in 0.002 0.01 0.05; do
    check "after $delay s: the export" lossy uring
    check "after $delay s: the socket" open_socket
    check "after $delay s: a client dies with its flush under way" flush_and_die $delay
    check "after $delay s: the socket of the next" open_socket
    check "after $delay s: who comes then is told that bytes are lost" says lost "$(nbd 'print(flush(connect()))')"
    sweep
done
finish
