# The server's power is cut under load, again and again: what was flushed or had FUA is there afterwards.
#   tests/vm/run --hosts 2 --disk-b 512M --env KAERU_BIN=target/debug tests/vm/cases/power-cut.sh
# shellcheck shell=bash source=tests/vm/kaeru.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/kaeru.sh"

cuts=5
two_hosts

# ── Host b: a file on ext4 around the page cache, one on xfs through it, and a disk through it by plain system calls ──
if [ "$KAERU_VM_HOST" = b ]; then
    listen=10.9.0.2
    start_udev
    mkdir /mnt/ext4 /mnt/xfs
    if [ "$KAERU_VM_BOOT" = 1 ]; then
        sgdisk -n 1:0:+120M -n 2:0:+320M -n 3:0:+12M "$KAERU_VM_DISK" >/dev/null || die 'no partitions'
        udevadm settle
        if ! { mkfs.ext4 -q "${KAERU_VM_DISK}1" && mkfs.xfs -q "${KAERU_VM_DISK}2"; }; then die 'no file systems'; fi
    fi
    if ! { mount "${KAERU_VM_DISK}1" /mnt/ext4 && mount "${KAERU_VM_DISK}2" /mnt/xfs; }; then die 'cannot mount'; fi
    serve --file ext4=/mnt/ext4/image,create=12M --file xfs=/mnt/xfs/image,create=12M,direct=off \
        --disk "disk=${KAERU_VM_DISK}3,direct=off,engine=file"
    [ "$KAERU_VM_BOOT" != 1 ] || cat /run/kaerud.log
    barrier "up $KAERU_VM_BOOT"
    # This is as far as it gets before a cut.
    barrier finished 400
    check 'the server stops with status 0' stop_server
    umount /mnt/ext4 /mnt/xfs
    check 'fsck.ext4 finds nothing after the cuts' fsck.ext4 -fn "${KAERU_VM_DISK}1"
    check 'xfs_repair finds nothing after the cuts' xfs_repair -n "${KAERU_VM_DISK}2"
    finish
fi

# ── Host a: writes to all three ──
exports=(ext4 xfs disk)
declare -A target fabric writer
blocks() { "$KAERU_VM/blocks.py" "$@"; }

# Each export by another fabric than the time before; the file on ext4 as a device.
attach_all() {
    local name
    for name in "${exports[@]}"; do
        if [ "${fabric[$name]:-}" = verbs ]; then fabric[$name]=tcp; else fabric[$name]=verbs; fi
        [ "$name:$1" != xfs:1 ] || fabric[$name]=tcp
        if [ "$name" = ext4 ]; then
            check "attach $name over ${fabric[$name]}, round $1" \
                attach 10.9.0.2/ext4 --fabric "${fabric[$name]}" --timeout 5s || finish
            target[$name]=$device
        else
            rm -f "/run/$name.sock"
            kaeru nbd "10.9.0.2/$name" --fabric "${fabric[$name]}" --timeout 5s --socket "/run/$name.sock" \
                >"/run/$name.log" 2>&1 &
            target[$name]="nbd+unix:///?socket=/run/$name.sock"
            check "serve $name over ${fabric[$name]}, round $1" wait_for 20 test -S "/run/$name.sock" || finish
        fi
    done
}

for ((round = 1; round <= cuts; round++)); do
    barrier "up $round"
    attach_all $round
    for name in "${exports[@]}"; do
        timeout 90 "$KAERU_VM/blocks.py" "${target[$name]}" "/run/$name" >"/run/$name.said" 2>&1 &
        writer[$name]=$!
    done
    for name in "${exports[@]}"; do
        begun() { [ -e "/run/$name.writing" ] || ! kill -0 "${writer[$name]}"; }
        wait_for 60 begun
    done
    nap $((RANDOM % 3 + 2)).$((RANDOM % 10))
    power_cut b
    for name in "${exports[@]}"; do
        whole() { wait "${writer[$name]}" && grep -q 'refused at last' "/run/$name.said"; }
        check "all that was durable on $name is there, round $round" whole
        tail -n 5 "/run/$name.said" | sed "s/^/       $name: /"
    done
    [ "$guest_failures" = 0 ] || finish
    kaeru detach --force --all >/dev/null 2>&1
    check "nothing is left after cut $round" wait_for 30 nothing_left
done
barrier "up $round"
attach_all $round
for name in "${exports[@]}"; do
    check "all that was durable on $name is there at the end" blocks --check "${target[$name]}" "/run/$name"
done

# ── What the checks are worth ──
lost() { jq -s -e 'map(.lost) | add > 0' "${exports[@]/#//run/}"; }
check 'of what was not flushed, the cuts have taken some' lost
number=$(jq '.durable | map(. > 1) | index(true)' /run/ext4)
later() { jq ".durable[$number] += 1 | .written[$number] += 1" /run/ext4 >/run/later; }
check 'a block with one write more that was durable' later
check 'is found to be old' refuses "block $number: sector 0 is old" blocks --check "$device" /run/later
# spoil COUNT: that many sectors of the block are zeroes.
spoil() {
    dd if=/dev/zero of="$device" bs=512 seek=$((number * 40 + number % 2)) count="$1" oflag=direct conv=notrunc
}
check 'a block whose first sector was never written' spoil 1
check 'is found to be old, too' refuses "block $number: sector 0 is old" blocks --check "$device" /run/ext4
damage() { printf x | dd of="$device" bs=1 seek=$((number * 20480 + number % 2 * 512 + 4000)) conv=notrunc,fsync; }
check 'a block with one byte of another kind' damage
check 'is found to be damaged' refuses "block $number: sector" blocks --check "$device" /run/ext4
check 'detach' kaeru detach --all
barrier finished
finish
