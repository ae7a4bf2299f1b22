# What scripts about kaerud and kaeru are made of, beside guest.sh. They begin with:  . "$KAERU_VM/kaeru.sh"
# shellcheck shell=bash source=tests/vm/guest.sh
. "$KAERU_VM/guest.sh"

# Where the programs are; relative to the caller's folder, as run's --env has it.
: "${KAERU_BIN:=target/debug}"
KAERU_BIN=$(realpath "$KAERU_BIN")

kaeru() { "$KAERU_BIN/kaeru" "$@"; }

# Where `serve` listens; host b sets another one.
listen=10.9.0.1

# serve ARGUMENT...: starts kaerud and waits until it is ready; sets `server` to its process id.
serve() {
    "$KAERU_BIN/kaerud" --listen "$listen" --insecure "$@" >/run/kaerud.log 2>&1 &
    server=$!
    if ! wait_for 60 grep -qx ready /run/kaerud.log; then
        cat /run/kaerud.log
        die "kaerud is not ready"
    fi
}

# Stops the server, and waits for its end.
stop_server() {
    kill "$server"
    wait "$server"
}

# attach ARGUMENT...: sets `device` to what was attached; what else was said is in /run/attach.log.
attach() {
    local lines
    lines=$(kaeru attach "$@" 2>/run/attach.log) || {
        cat /run/attach.log
        return 1
    }
    # shellcheck disable=SC2034 # for the caller
    device=${lines%%$'\n'*}
}

# milliseconds COMMAND...: sets `took` to the time that the command takes, and gives its status.
milliseconds() {
    local start=$EPOCHREALTIME status=0
    "$@" || status=$?
    took=$(((${EPOCHREALTIME/./} - ${start/./}) / 1000))
    return $status
}

# within SECONDS COMMAND...: the command ends, with success, in that time. That is the time of a machine that has nothing
# else to do and starts a program in 0.1 s; one that is slower at the moment is given more.
within() {
    local limit=$(($1 * 1000)) status=0 took taken
    shift
    milliseconds "$@" || status=$?
    taken=$took
    say "took $taken ms of $limit"
    if [ "$taken" -gt $limit ]; then
        milliseconds kaeru --version
        if [ "$took" -gt 100 ]; then limit=$((limit * took / 100)); fi
        say "starting a program takes $took ms, so the limit is $limit"
    fi
    [ $status = 0 ] && [ "$taken" -le $limit ]
}

# refuses PART COMMAND...: the command fails and says PART.
refuses() {
    local part=$1 said
    shift
    if said=$("$@" 2>&1); then
        say "it succeeded: $said"
        return 1
    fi
    says "$part" "$said"
}

# says PART TEXT: TEXT contains PART.
says() {
    say "$2"
    [[ $2 = *"$1"* ]]
}

# status_is FILTER: jq's verdict on what `kaeru status --json` says of the one thing that is attached.
status_is() {
    kaeru status --json >/run/status.json && cat /run/status.json &&
        jq -e "length == 1 and (.[0] | $1)" /run/status.json
}

size_of() { blockdev --getsize64 "$1"; }

# cpu_ticks PID: hundredths of a second that it ran, user and system.
cpu_ticks() {
    local stat
    stat=$(<"/proc/$1/stat")
    # shellcheck disable=SC2086 # fields are wanted
    set -- ${stat##*) }
    say $((${12} + ${13}))
}

# nothing_left: no device is bound, no process of ours lives beside the server, no note is left.
nothing_left() {
    ! ls /sys/block/nbd*/pid 2>/dev/null && ! pgrep -ax kaeru && ! ls /run/kaeru/*.json /run/kaeru/*.sock 2>/dev/null
}

# A file tree of this system that is large enough to be no accident, and small enough for an emulated CPU.
tree=/usr/include/linux
same_tree() { diff -r "$tree" "$1"; }
