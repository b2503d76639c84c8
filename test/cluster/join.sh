#!/usr/bin/env bash
# Adds a node to the running cluster: a containerd and a kubelet in mount and process namespaces inside those of node1,
# with which they end, and in node1's network namespace.
#   join.sh N [IMAGE.tar...]      N from 2 to 9
set -euo pipefail
. "$(dirname "$0")/common.sh"
number=${1:?join.sh N [IMAGE.tar...]}
shift
[[ $number =~ ^[2-9]$ ]] || fail "$number is not a number from 2 to 9"
init=$(init_pid) || fail 'no cluster runs'
umask 077
node_config "$number"
nsenter --target "$init" --net ip address replace "10.99.0.$number/24" dev nodes

umask 022 # the programs need the usual one
setsid nsenter --target "$init" --mount --net --pid unshare --mount --pid --fork --kill-child --mount-proc --propagation private \
  /bin/bash "$cluster/init.sh" "$number" >"$log/init-node$number.log" 2>&1 </dev/null &
wait_until 60 'socket of containerd' test -S "$run/node$number/containerd.sock"
import_images "$number" "$@"
wait_until 120 "node$number is Ready" node_ready "$number"
say "node$number is Ready"
