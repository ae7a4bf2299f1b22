# Attaching and detaching over and over, one after another and all at once: nothing is left over.
#   tests/vm/run --env KAERU_BIN=target/debug tests/vm/cases/churn.sh
# shellcheck shell=bash source=tests/vm/kaeru.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/kaeru.sh"

one_host
exports=()
for number in 1 2 3 4 5 6 7 8 9; do
    exports+=(--ram "r$number=4M")
done
serve "${exports[@]}" --file f=/run/f,create=16M --file g=/run/g,create=16M,engine=file

server_descriptors() { find "/proc/$server/fd" -mindepth 1 -maxdepth 1 | wc -l; }
# Threads for what may block come and go by themselves.
server_threads() { find "/proc/$server/task" -mindepth 1 -maxdepth 1 | wc -l; }
same_as_before() {
    [ "$(rdma_resources)" = "$resources" ] && [ "$(server_descriptors)" = "$descriptors" ] && [ "$(server_threads)" -le "$threads" ]
}
show_difference() {
    say "before: $resources, $descriptors descriptors, $threads threads"
    say "now: $(rdma_resources), $(server_descriptors) descriptors, $(server_threads) threads"
    return 1
}
given_back() { wait_for 20 same_as_before || show_difference; }

# rounds COUNT EXPORT ARGUMENT...: attaches, reads a little, detaches, COUNT times; with a file it writes, too.
rounds() {
    local round count=$1 name=$2
    shift 2
    for ((round = 1; round <= count; round++)); do
        if ! { attach "$@" "10.9.0.1/$name" && dd if="$device" of=/dev/null bs=64k count=4 iflag=direct status=none &&
            { [[ $name = r? ]] || dd if=/dev/zero of="$device" bs=64k count=4 oflag=direct conv=notrunc status=none; } &&
            kaeru detach "$device" >/dev/null; }; then
            say "in round $round"
            return 1
        fi
    done
}

# all_at_once: nine clients, each with an export of its own, attach and detach.
all_at_once() {
    local number jobs=() job status=0
    for number in 1 2 3 4 5 6 7 8 9; do
        { timeout 60 "$KAERU_BIN/kaeru" attach "10.9.0.1/r$number" && timeout 60 "$KAERU_BIN/kaeru" detach "10.9.0.1/r$number"; } 2>&1 &
        jobs+=($!)
    done
    for job in "${jobs[@]}"; do
        wait "$job" || status=$?
    done
    return "$status"
}

# What a server registers once, for its first client, stays.
if ! { rounds 1 r1 && rounds 1 r1 --fabric tcp && rounds 1 f && rounds 1 g; }; then die 'the first attach failed'; fi
nap 1
resources=$(rdma_resources)
descriptors=$(server_descriptors)
threads=$(server_threads)

start=$SECONDS
check 'fifty times over verbs, one after another' rounds 50 r1 --fabric verbs
say "       $((SECONDS - start)) s"
check 'nothing is left of them' nothing_left
check 'queue pairs, regions and descriptors are given back' given_back
check 'fifteen times over tcp, one after another' rounds 15 r1 --fabric tcp
check 'nothing is left of those' nothing_left
check 'their descriptors are given back' given_back
for round in 1 2 3; do
    check "nine at once, round $round" all_at_once
    check "nothing is left of round $round" nothing_left
done
check 'everything is given back at the end' given_back
check 'thirty times a file over verbs' rounds 30 f --fabric verbs
check 'ten times a file over tcp' rounds 10 f --fabric tcp
check 'ten times one without io_uring' rounds 10 g --fabric verbs
check 'nothing is left of the files' nothing_left
check 'queue pairs, rings, threads and descriptors of files are given back' given_back
check 'the server stops with status 0' stop_server
no_resources() { ! rdma resource show qp | grep -q kaeru && ! rdma resource show mr | grep -q kaeru; }
check 'the server gives its own resources back' no_resources
finish
