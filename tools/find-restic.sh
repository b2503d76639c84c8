#!/usr/bin/env bash
# Saves the minute that building restic takes: puts restic where it is wanted if the one in PATH is of the wanted version, or the
# release can be downloaded and has its SHA-256 in CHECKSUMS. Exit code 1: it has to be built. A distribution's restic may be built
# with other modules and an older Go than the release: Debian's 0.14.0 does not take renewed AWS keys.
#
#   find-restic.sh OUTPUT VERSION CHECKSUMS
#
# RESTIC_RELEASES names another server, PARTS=download does not look in PATH, and PARTS=build turns the search off. Without a network it takes seconds.
set -euo pipefail
output=$1 version=$2 checksums=$3
releases=${RESTIC_RELEASES:-https://github.com/restic/restic/releases/download}

# take FILE WHERE: keeps a restic of the wanted version.
take() {
  local said
  said=$("$1" version 2>/dev/null) || return 1
  [[ $said == "restic $version compiled "* ]] || return 1
  install -m 755 "$1" "$output.found"
  mv "$output.found" "$output"
  echo "restic: $version, $2"
}

[ "${PARTS:-}" != build ] || exit 1
mkdir -p "$(dirname "$output")"
if [ "${PARTS:-}" != download ] && path=$(command -v restic) && take "$path" "found as $path"; then exit 0; fi

archive=restic_${version}_$(go env GOOS)_$(go env GOARCH).bz2
[ -e "$checksums" ] || exit 1
checksum=$(awk -v name="$archive" '$2 == name { print $1 }' "$checksums")
[ -n "$checksum" ] || exit 1
downloaded=$(realpath "$(mktemp "$output.XXXXXX")")
trap 'rm -f "$downloaded"' EXIT
if ! said=$(go -C "$(dirname "$0")/.." run ./tools/download "$releases/v$version/$archive" "$checksum" "$downloaded" 2>&1); then
  echo "restic: no download ($(head -n 1 <<<"$said")); it is built"
  exit 1
fi
take "$downloaded" "downloaded from ${releases#*://}"
