#!/usr/bin/env bash
# Runs seeds of trouble, after a look at whether the oracle sees what is wrong. Settings are environment variables (Makefile).
set -euo pipefail
cd "$(dirname "$0")"
export SEEDS="${SEEDS:-20}" SEED="${SEED:-}"
only=TestChaos
[ -n "$SEED" ] || only='Test'
"../../bin/chaos.test" -test.run "$only" -test.timeout "$((SEEDS + 15))m" 2>&1 | tee ../../bin/chaos.log
exec ../../tools/no-skips.sh '^ *--- SKIP: ' ../../bin/chaos.log
