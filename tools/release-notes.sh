#!/usr/bin/env bash
# Prints the section of CHANGELOG.md that belongs to a version, without its heading. Fails if there is none.
#
#   release-notes.sh v0.2.0
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1#v}
awk -v heading="## $version" '
  /^## / { if (found) exit; found = ($0 == heading || index($0, heading " ") == 1); next }
  found { print; if (NF) lines++ }
  END { if (!lines) { print "CHANGELOG.md has no section \"" heading "\"" > "/dev/stderr"; exit 1 } }
' CHANGELOG.md
