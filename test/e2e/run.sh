#!/usr/bin/env bash
# Runs the end-to-end suite on the cluster that KUBECONFIG names. Without KUBECONFIG it makes a cluster of two nodes with
# the scripts in CLUSTER_DIR, where they are, and takes it down again. `make e2e` calls it.
set -euo pipefail
cd "$(dirname "$0")/../.."
repository=$PWD
cluster=${CLUSTER_DIR:-../shared/cluster}
root=${RK_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/realk8s} # where the scripts keep what they build and run
suite=("$repository/bin/e2e.test" -test.v -test.timeout=30m)

if [ -z "${KUBECONFIG:-}" ] && [ ! -x "$cluster/up.sh" ]; then
  echo "*** e2e IS SKIPPED, NOTHING WAS TESTED: KUBECONFIG is not set, and there is no cluster to make in $cluster ***"
  exit 0
fi

make --no-print-directory bin/e2e.test bin/velero bin/kubectl-plimsoll bin/controlplane/kubectl
if [ -n "${KUBECONFIG:-}" ]; then
  KUBECONFIG=$(realpath "$KUBECONFIG") && cd test/e2e && exec "${suite[@]}"
fi

if [ -s "$root/run/ns.pid" ] && kill -0 "$(cat "$root/run/ns.pid")" 2>/dev/null; then
  echo "e2e: a cluster runs already. Take it down with $cluster/down.sh, or set KUBECONFIG" >&2
  exit 1
fi
images=(bin/image/node-agent.tar bin/image/e2e.tar bin/image/velero.tar)
make --no-print-directory "${images[@]}"
# RK_PROXY is left out: the suite needs no Services.
export RK_NETNS=1 RK_IMAGES="${images[*]/#/$repository/}"
"$cluster/build.sh"

take_down() {
  local code=$? said
  trap - EXIT
  cd "$repository"
  if [ "$code" -ne 0 ] && [ -d "$root/log" ]; then
    rm -rf bin/e2e-log && cp -r "$root/log" bin/e2e-log && echo "e2e: the cluster's logs are in bin/e2e-log"
  fi
  # It says nothing if all is well: the last line is the suite's.
  said=$("$cluster/down.sh" --purge 2>&1) || code=1
  if grep -qE '^left:|mounts left: [1-9]' <<<"$said"; then code=1; fi
  [ "$code" -eq 0 ] || echo "e2e: taking the cluster down: $said"
  exit "$code"
}
trap take_down EXIT
trap 'exit 130' INT TERM
"$cluster/up.sh"
"$cluster/join.sh" 2
cd test/e2e
nsenter -t "$(cat "$root/run/ns.pid")" -n env KUBECONFIG="$root/etc/admin.kubeconfig" "${suite[@]}"
