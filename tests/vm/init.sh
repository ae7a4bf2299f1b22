# The first process in the guest once the host's root is there; initrd.sh starts it.
# Runs the script of this host and reports its exit status. Never exits: that would be a kernel panic.
# shellcheck shell=bash

control=/run/vm
# What the kernel put here came from its command line.
host=$KAERU_VM_HOST

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM=dumb
# shellcheck disable=SC1090
. "$control/env.$host"

# Port 1 carries what the script says, port 2 its exit status: neither can mix with the kernel's messages.
cd "$KAERU_VM_CWD" || cd /
bash "$KAERU_VM_SCRIPT" </dev/null >/dev/vport0p1 2>&1
status=$?

busybox dmesg >"$control/dmesg.$host"
busybox sync
echo "$status" >/dev/vport0p2
echo o >/proc/sysrq-trigger
while :; do sleep 60; done
