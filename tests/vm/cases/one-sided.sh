# Reads and writes of a RAM export need no instruction of the server: it is stopped, and they go on.
#   tests/vm/run --env KAERU_BIN=target/debug tests/vm/cases/one-sided.sh
# shellcheck shell=bash source=tests/vm/kaeru.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/kaeru.sh"

one_host
serve --ram a=32M --ram b=32M
check 'attach a' attach 10.9.0.1/a --fabric verbs || finish
kaeru nbd 10.9.0.1/b --fabric verbs --socket /run/b.sock >/run/b.log 2>&1 &
check 'serve b on a socket' wait_for 20 test -S /run/b.sock
uri='nbd+unix:///?socket=/run/b.sock'
head -c 2M /dev/urandom >/run/pattern
pattern_on_a() { dd if="$device" bs=64k count=32 skip=128 iflag=direct status=none | cmp - /run/pattern; }
check 'a pattern is written' dd if=/run/pattern of="$device" bs=64k seek=128 oflag=direct conv=notrunc status=none

# thousand ENGINE OPTION...: 1,000 writes of 4 KiB, then 1,000 reads that find what was written.
thousand() {
    fio --name=t --output-format=json --output=/run/fio.json --ioengine="$1" "${@:2}" --rw=randwrite --bs=4k \
        --size=4000k --iodepth=8 --verify=crc32c --verify_fatal=1 --do_verify=1 || return
    jq -e '.jobs[0] | .write.total_ios == 1000 and .read.total_ios == 1000 and .error == 0' /run/fio.json
}

state() { sed -n 's/^State:\t\(.\).*/\1/p' "/proc/$server/status"; }
is_stopped() { [ "$(state)" = T ]; }
kill -STOP "$server"
check 'the server is stopped' wait_for 5 is_stopped
before=$(cpu_ticks "$server")
check 'what was written before is read' pattern_on_a
check '1,000 writes and 1,000 reads of the device' thousand libaio --filename="$device" --direct=1
check '1,000 writes and 1,000 reads over NBD' thousand nbd --uri="$uri"
check 'the server was stopped all the time' is_stopped
check 'and used no CPU' [ "$(cpu_ticks "$server")" = "$before" ]
kill -CONT "$server"

state_of_a() { kaeru status --json | jq -e '.[] | select(.device) | .state == "ok"'; }
check 'the session has outlived that' wait_for 20 state_of_a
kaeru nbd 10.9.0.1/a --read-only --socket /run/a.sock >/run/a.log 2>&1 &
check 'a second client attaches to read' wait_for 20 test -S /run/a.sock
seen_by_second() {
    nbdcopy 'nbd+unix:///?socket=/run/a.sock' /run/seen && dd if="$device" of=/run/written bs=1M iflag=direct status=none &&
        cmp /run/seen /run/written
}
check 'it sees every byte that was written' seen_by_second
check 'detach' kaeru detach --all
check 'the server stops with status 0' stop_server
finish
