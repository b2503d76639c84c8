#!/usr/bin/env bash
# Builds one program from a module of this repository and says so. Called by the Makefile.
#
#   build.sh MODULE PACKAGE OUTPUT ABOUT [FLAG...]
#
# MODULE is the folder of a go.mod that requires PACKAGE, OUTPUT the binary's path, ABOUT how long a first build takes
# on two cores. FLAGs go to `go build`. The binary appears under its name only when it is complete.
set -euo pipefail
module=$1 package=$2 output=$3 about=$4
shift 4

name=$(basename "$output")
mkdir -p "$(dirname "$output")"
output=$(cd "$(dirname "$output")" && pwd)/$name
partial=$(mktemp "$output.XXXXXX")
trap 'rm -f "$partial"' EXIT

echo "building $name (the first time about $about on 2 cores, then from Go's cache)"
SECONDS=0
timed=$(cd "$(dirname "$0")" && pwd)/timed.sh
# VCS stamping would fail in a checkout that belongs to somebody else.
(cd "$module" && CGO_ENABLED=0 "$timed" "$name" "$about" go build -trimpath -buildvcs=false "$@" -o "$partial" "$package")
chmod 755 "$partial"
mv "$partial" "$output"
echo "built $name in ${SECONDS} s"
