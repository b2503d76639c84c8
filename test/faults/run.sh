#!/usr/bin/env bash
# Runs the fault suite, and says at the end once more what was wrong with the rows that are lost: a log of thousands of lines
# is cut by whoever shows it.
set -euo pipefail
cd "$(dirname "$0")"
bin=../../bin
if "$bin/faults.test" -test.v -test.timeout 40m -test.parallel 8 "$@" 2>&1 | tee "$bin/faults.log"; then
  exec ../../tools/no-skips.sh '^ *--- SKIP: ' "$bin/faults.log"
fi
printf '\n=== what was wrong:\n'
awk '/^=== (RUN|CONT|NAME|PAUSE)/ {test = $3}
     /^ +[a-z0-9_]+\.go:[0-9]+: / && !/ ends with:$/ {print test ": " substr($0, 1, 1000)}
     /^(panic: |WARNING: DATA RACE)/ {print test ": " $0}' "$bin/faults.log"
exit 1
