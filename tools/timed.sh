#!/usr/bin/env bash
# Runs a command, and says each half minute how long it has taken and how long it will: by the time that it took before, which is
# recorded in bin/times, or by ABOUT. Of commands within each other only the outermost does.
#
#   timed.sh NAME ABOUT COMMAND...
#
# ABOUT is how long it takes from empty caches on two cores, as '5 min'. TIMED_EVERY is in seconds, TIMED_RECORDS is another folder.
set -euo pipefail
name=$1 about=$2
shift 2
[ -z "${TIMED:-}" ] || exec "$@"
export TIMED=$name
record=${TIMED_RECORDS:-$(dirname "$0")/../bin/times}/$name
expected=$(cat "$record" 2>/dev/null) && [[ $expected =~ ^[1-9][0-9]{0,5}$ ]] || expected=$((${about% min} * 60))
width=20

duration() { [ "$1" -lt 60 ] && echo "$1 s" || echo "$(($1 / 60)) min $(($1 % 60)) s"; }

# line says how far it is. The bar is full when the command has ended, and not before.
line() {
  local done=$((SECONDS * width / expected)) left
  left="about $(duration $((expected - SECONDS))) left"
  if [ "$SECONDS" -ge "$expected" ]; then
    done=$((width - 1)) left="longer than the expected $(duration "$expected")"
  fi
  printf '%s [%.*s%.*s] %s, %s\n' "$name" "$done" '####################' "$((width - done))" '--------------------' "$(duration $SECONDS)" "$left"
}

SECONDS=0
# A sleep that outlives its shell must not keep a reader of the output waiting.
while sleep "${TIMED_EVERY:-30}" >/dev/null 2>&1; do line; done &
ticker=$!
trap 'kill "$ticker" 2>/dev/null || true' EXIT
"$@"
mkdir -p "$(dirname "$record")"
echo $((SECONDS > 0 ? SECONDS : 1)) >"$record"
