# The contract of fabrics, kept by verbs on a Soft-RoCE card.
#   tests/vm/run --env KAERU_BIN=target/debug tests/vm/cases/conformance.sh
# shellcheck shell=bash source=tests/vm/guest.sh disable=SC2317 # check calls functions by name
. "$KAERU_VM/guest.sh"

one_host
suite=$KAERU_BIN/integration
[ -x "$suite" ] || suite=$(find "$KAERU_BIN/deps" -name 'integration-*' -type f -perm -u+x -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2)
[ -n "$suite" ] || die "no integration test binary in $KAERU_BIN/deps"
before=$(rdma_resources)
same_resources() { [ "$(rdma_resources)" = "$before" ]; }

# One by one: an emulated CPU is slow enough without tests that wait for one another.
heard=/run/conformance
run_suite() { KAERU_VERBS_ADDRESS=10.9.0.1 "$suite" conformance::verbs --test-threads=1 2>&1 | tee "$heard"; }
while read -r word name _ verdict reason; do
    name=${name##*::}
    case $word-$verdict in
        test-SKIP) say "SKIP   verbs: ${name//_/ }: ${reason#*: }" ;;
        test-ok | test-FAILED) check "verbs: ${name//_/ }" [ "$verdict" = ok ] ;;
    esac
done < <(run_suite)
kept() {
    grep '^test result: ok. [3-9][0-9] passed; 0 failed; 0 ignored' "$heard" && return
    sed -n '/^failures:/,$p' "$heard"
    return 1
}
check 'the contract is kept, all of it' kept
check 'the verbs resources are given back' wait_for 10 same_resources || rdma_resources
finish
