# A server on one host, its client on another: file systems over verbs and tcp, and a cable that is pulled.
#   tests/vm/run --hosts 2 --env KAERU_BIN=target/debug tests/vm/cases/two-hosts.sh
# shellcheck shell=bash source=tests/vm/kaeru.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/kaeru.sh"

two_hosts
if [ "$KAERU_VM_HOST" = a ]; then
    serve --ram x=96M --ram y=32M
    check 'RDMA is offered' says 'rxe0 at 10.9.0.1' "$(</run/kaerud.log)"
    barrier ready
    barrier served 280
    check 'the server is alive' kill -0 "$server"
    check 'it stops with status 0' stop_server
    finish
fi
barrier ready

examined=$("$KAERU_BIN/kaeru-doctor" -v --peer 10.9.0.1 | tr -s ' \n' '  ')
for part in '10.9.0.1 is reached by eth0, which is an RDMA interface' 'both ends speak Ethernet' \
    'both ends take packets of 4096 bytes' 'both ends speak one version of RoCE'; do
    check "the doctor of both ends: $part" says " ok $part" "$examined"
done

for fabric in auto tcp; do
    check "attach over $fabric" attach 10.9.0.1/x --fabric "$fabric" --timeout 10s || finish
    if [ "$fabric" = auto ]; then
        check 'auto takes verbs' status_is '.fabric == "verbs"'
        check 'and says why' says 'device rxe0 is within reach' "$(</run/attach.log)"
        check 'mkfs' mkfs.ext4 -q "$device"
        check 'mount' mount "$device" /mnt
        check 'a tree is copied' cp -r "$tree" /mnt/tree
        check 'umount' umount /mnt
    else
        check 'tcp is tcp' status_is '.fabric == "tcp" and .fabric_reason == "--fabric tcp"'
        check 'what was written over verbs can be mounted' mount "$device" /mnt
        check 'and is the same' same_tree /mnt/tree
        check 'umount over tcp' umount /mnt
    fi
    check "fsck over $fabric" fsck.ext4 -fn "$device"
    check "detach over $fabric" kaeru detach "$device"
    check "attach y over $fabric" attach 10.9.0.1/y --fabric "$fabric"
    check "random reads and writes over $fabric verify" fio --name=mix --filename="$device" --direct=1 \
        --ioengine=libaio --rw=randrw --bsrange=4k-128k --iodepth=16 --size=12m --verify=crc32c --verify_fatal=1
    check "detach y over $fabric" kaeru detach "$device"
done

for fabric in verbs tcp; do
    check "attach before the cable is pulled, over $fabric" attach 10.9.0.1/y --fabric "$fabric" --timeout 5s
    dd if=/dev/zero of="$device" bs=16k oflag=direct conv=notrunc 2>/run/dd.log &
    writer=$!
    nap 0.3
    ip link set eth0 down
    ends_in_time() {
        local start=$SECONDS
        ! wait "$writer"
        say "after $((SECONDS - start)) s: $(</run/dd.log)"
        [ $((SECONDS - start)) -le 12 ] && grep -i 'input/output error' /run/dd.log
    }
    check "without a cable a write ends with an error, over $fabric" ends_in_time
    check "and detach works, over $fabric" within 10 kaeru detach --force "$device"
    # It still tries to say goodbye to the server.
    check "nothing is left, over $fabric" wait_for 20 nothing_left
    ip link set eth0 up
    check "the cable is back after $fabric" wait_for 20 reaches 10.9.0.1
    # Soft-RoCE sends no connect request any more, for any program, once one was to be sent while its card was down; and
    # the server may not have noticed yet that its old client has gone.
    check "auto attaches again after $fabric" wait_for 60 attach 10.9.0.1/y
    check "and says why, if not over verbs, after $fabric" status_is \
        '.fabric == "verbs" or (.fabric_reason | contains("did not answer over verbs"))'
    check "detach after $fabric" kaeru detach --all
done
barrier served
finish
