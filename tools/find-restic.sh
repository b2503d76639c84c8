#!/usr/bin/env bash
# Saves the minute that building restic takes: puts restic where it is wanted if one of the wanted version is in PATH or beside OUTPUT, or if
# the release can be downloaded and has its SHA-256 in CHECKSUMS. With OLDEST, it then takes what PATH has from that version on.
# Exit code 1: restic has to be built. A distribution's restic may be built with other modules and an older Go than the release: Debian's 0.14.0
# does not take renewed AWS keys.
#
#   find-restic.sh OUTPUT VERSION CHECKSUMS [OLDEST]
#
# RESTIC_RELEASES names another server, PARTS=download does not look in PATH, and PARTS=build turns the search off. Without a network it takes seconds.
set -euo pipefail
output=$1 version=$2 checksums=$3 oldest=${4:-}
releases=${RESTIC_RELEASES:-https://github.com/restic/restic/releases/download}

# version_of FILE prints the version, and nothing for what is no restic that runs.
version_of() { timeout 10 "$1" version 2>/dev/null | sed -n '1s/^restic \([0-9.]*\) compiled .*/\1/p' || true; }

keep() {
  install -m 755 "$1" "$output.found"
  mv "$output.found" "$output"
  echo "restic: $2"
}

# take FILE WHERE keeps a restic of the wanted version.
take() { [ "$(version_of "$1")" = "$version" ] && keep "$1" "$version, $2"; }

# take_supported FILE keeps a restic of another version than the wanted one.
take_supported() {
  local found
  found=$(version_of "$1")
  if [ -z "$found" ]; then
    echo "restic: $1 is not used, it does not say its version"
  elif [ "$(printf '%s\n' "$oldest" "$found" | sort -V | head -n 1)" != "$oldest" ]; then
    echo "restic: $1 is not used, it is $found and must be $oldest or later"
  else
    keep "$1" "$found, found as $1 (the tests have $version)"
    return
  fi
  return 1
}

# download keeps the release.
download() {
  local archive checksum said
  archive=restic_${version}_$(go env GOOS)_$(go env GOARCH).bz2
  [ -e "$checksums" ] || return 1
  checksum=$(awk -v name="$archive" '$2 == name { print $1 }' "$checksums")
  [ -n "$checksum" ] || return 1
  downloaded=$(realpath "$(mktemp "$output.XXXXXX")")
  trap 'rm -f "$downloaded"' EXIT
  if ! said=$(go -C "$(dirname "$0")/.." run ./tools/download "$releases/v$version/$archive" "$checksum" "$downloaded" 2>&1); then
    echo "restic: no download ($(head -n 1 <<<"$said"))"
    return 1
  fi
  take "$downloaded" "downloaded from ${releases#*://}"
}

[ "${PARTS:-}" != build ] || exit 1
mkdir -p "$(dirname "$output")"
path=
if [ "${PARTS:-}" != download ]; then
  path=$(command -v restic) || true
  for candidate in "$path" "$(dirname "$output")"/restic{,-"$version"}; do
    if [ -x "$candidate" ] && [ "$candidate" != "$output" ] && take "$candidate" "found as $candidate"; then exit 0; fi
  done
fi
if download; then exit 0; fi
if [ -n "$oldest" ] && [ -n "$path" ] && take_supported "$path"; then exit 0; fi
echo "restic: $version is built"
exit 1
