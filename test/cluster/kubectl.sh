#!/usr/bin/env bash
# kubectl as the administrator of the running cluster.
set -euo pipefail
. "$(dirname "$0")/common.sh"
init=$(init_pid) || fail 'no cluster runs'
exec nsenter --target "$init" --net "$bin/kubectl" --kubeconfig "$etc/admin.kubeconfig" "$@"
