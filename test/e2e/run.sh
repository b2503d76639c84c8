#!/usr/bin/env bash
# Runs the end-to-end suite on the cluster that KUBECONFIG names. Without KUBECONFIG it starts a cluster of two nodes with
# the scripts in test/cluster, as root, and takes it down again. `make e2e` calls it.
set -euo pipefail
cd "$(dirname "$0")/../.."
. test/cluster/common.sh # for cache, log, etc, init_pid
suite=("$repository/bin/e2e.test" -test.v -test.timeout=30m)

if [ -z "${KUBECONFIG:-}" ] && [ "$(uname -s) $(id -u)" != 'Linux 0' ]; then
  echo '*** e2e IS SKIPPED, NOTHING WAS TESTED: set KUBECONFIG, or run it as root on Linux, where it starts a cluster ***'
  exit 0
fi

make --no-print-directory bin/e2e.test bin/velero bin/velero-1.16 bin/kubectl-plimsoll bin/controlplane/kubectl demo-cluster-parts
if [ -n "${KUBECONFIG:-}" ]; then
  KUBECONFIG=$(realpath "$KUBECONFIG") && cd test/e2e && exec "${suite[@]}"
fi

if init_pid >/dev/null; then
  echo "e2e: a cluster runs already. End it with test/cluster/down.sh, or set KUBECONFIG" >&2
  exit 1
fi
images=(bin/image/node-agent.tar bin/image/e2e.tar bin/image/velero.tar bin/image/velero-1.16.tar bin/image/demo.tar)
make --no-print-directory "${images[@]}"
test/cluster/build.sh

take_down() {
  local code=$? output
  trap - EXIT
  cd "$repository"
  if [ "$code" -ne 0 ] && [ -d "$log" ]; then
    rm -rf bin/e2e-log && cp -r "$log" bin/e2e-log && echo "e2e: the cluster's logs are in bin/e2e-log"
  fi
  # Its output is shown only if something is wrong: the last line is the suite's.
  output=$(test/cluster/down.sh 2>&1) || code=1
  [ "$code" -eq 0 ] || echo "e2e: taking the cluster down: $output"
  exit "$code"
}
trap take_down EXIT
trap 'exit 130' INT TERM
test/cluster/up.sh "${images[@]/#/$repository/}"
test/cluster/join.sh 2 "${images[@]/#/$repository/}"
cd test/e2e
nsenter --target "$(init_pid)" --net env KUBECONFIG="$etc/admin.kubeconfig" "${suite[@]}"
