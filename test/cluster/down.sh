#!/usr/bin/env bash
# Ends the cluster and removes all that it left on the machine. The programs in the cache stay. Exits with 1 if anything is left.
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ "$(id -u)" = 0 ] || fail 'needs root'
left=()

if init=$(init_pid); then
  kill -KILL "$init" # all processes of the namespaces end with it, and their mounts and networks with them
  for _ in $(seq 100); do
    [ -d "/proc/$init" ] || break
    sleep 0.1
  done
fi

remove_cgroup() {
  local folder=$1
  for _ in $(seq 30); do
    [ -d "$folder" ] || return 0
    find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || true
    [ -d "$folder" ] || return 0
    sleep 0.1
  done
  left+=("$folder: processes $(find "$folder" -name cgroup.procs -exec cat {} + 2>/dev/null | tr '\n' ' ')")
}
while read -r hierarchy; do remove_cgroup "$hierarchy/$cgroup"; done < <(cgroup_hierarchies)

if [ -f "$run/created" ]; then
  while read -r folder; do rmdir "$folder" 2>/dev/null || left+=("$folder"); done <"$run/created"
fi
if mounts=$(grep -F " $cache/" /proc/self/mounts); then left+=("mounts: $mounts"); else rm -rf --one-file-system "$run" "$log" "$etc" "$data"; fi
for what in "${left[@]}"; do echo "cluster: left: $what" >&2; done
[ ${#left[@]} -eq 0 ] || exit 1
say 'ended'
