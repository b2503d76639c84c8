#!/usr/bin/env bash
# Takes the restic in PATH if it is of the wanted version. Exit code 1: it has to be built.
#
#   find-restic.sh OUTPUT VERSION
#
# PARTS=build turns the search off.
set -euo pipefail
output=$1 version=$2

[ "${PARTS:-}" != build ] || exit 1
path=$(command -v restic) || exit 1
said=$("$path" version 2>/dev/null) || exit 1
[[ $said == "restic $version compiled "* ]] || exit 1
mkdir -p "$(dirname "$output")"
install -m 755 "$path" "$output.found"
mv "$output.found" "$output"
echo "restic: $version, found as $path"
