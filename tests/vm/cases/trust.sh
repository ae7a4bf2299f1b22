# Whether kaeru-bench tells the truth: tests/bench/trust.sh, with the programs that the tests were built with. What those
# spend themselves is more of a read of 8 bytes than in a release build, so the fabric is allowed 25 % here, not 10.
#   tests/vm/run --icount --env KAERU_TRUST_FABRIC=25 --env KAERU_BIN=target/debug tests/vm/cases/trust.sh
# shellcheck shell=bash source=tests/bench/trust.sh
. "$(dirname "${BASH_SOURCE[0]}")/../../bench/trust.sh"
