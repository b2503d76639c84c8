#!/usr/bin/env bash
# Gives a module the versions of another go.mod for what both require, so that Go compiles each of these packages once for all programs:
# kube-apiserver and etcd share 900 packages with ours. Kubernetes' own libraries, which are replaced in its go.mod, get the version of
# client-go. Changes nothing where the versions are equal.
#
#   align.sh GO.MOD MODULE
set -euo pipefail
cd "$(dirname "$0")/.."

# required GO.MOD prints path and version of each module that it requires.
required() { sed -n 's/^\t\([^ ]*\) \(v[^ ]*\)\( \/\/ indirect\)\{0,1\}$/\1 \2/p' "$1" | LC_ALL=C sort; }

from=$1 to=$2/go.mod
before=$(cat "$to")
client_go() { required "$1" | sed -n 's/^k8s.io\/client-go //p'; }
client_go=$(client_go "$from") has_client_go=$(client_go "$to") kubernetes='^$'
# A program that needs another minor version of Kubernetes' libraries keeps them, and what only fits those.
if [ -n "$has_client_go" ] && [ "${client_go%.*}" != "${has_client_go%.*}" ]; then
  client_go='' kubernetes='^(sigs\.)?k8s\.io/|/gnostic-models$'
fi
[ -z "$client_go" ] || sed -i "s|^\(\tk8s.io/[^ ]* => k8s.io/[^ ]*\) v.*|\1 $client_go|" "$to"
LC_ALL=C join <(required "$from") <(required "$to") | while read -r path want has; do
  [ "$want" = "$has" ] || [[ $path =~ $kubernetes ]] || grep -q "^	$path => " "$to" || go mod edit -require="$path@$want" "$to"
done
[ "$(cat "$to")" = "$before" ] || (cd "$2" && echo "$2: new versions" && go mod tidy)
