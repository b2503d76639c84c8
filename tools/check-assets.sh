#!/usr/bin/env bash
# Says in one line whether the control plane in a folder can be used: its kube-apiserver and etcd run, and have a supported version.
# Exit code 1: it is not used.
#
#   check-assets.sh DIR OLDEST
#
# DIR is what KUBEBUILDER_ASSETS names, OLDEST the first minor version of Kubernetes that we support.
set -euo pipefail
dir=$1 oldest=$2
oldest_etcd=3.5 # Kubernetes 1.27 came with 3.5.7

refuse() {
  echo "control plane: that of KUBEBUILDER_ASSETS is not used: $1. setup-envtest's is taken, or one is built"
  exit 1
}

# version PROGRAM PREFIX sets major, minor and found from what the program prints after the prefix.
version() {
  local said
  [ -x "$dir/$1" ] || refuse "$dir has no program $1"
  said=$(timeout 10 "$dir/$1" --version 2>&1 | head -n 1 | tr -dc '[:print:]' | head -c 80) || true
  [[ $said =~ ^$2([0-9]+)\.([0-9]+)\.[0-9]+ ]] || refuse "$dir/$1 does not say its version, but \"$said\""
  major=${BASH_REMATCH[1]} minor=${BASH_REMATCH[2]} found=${said#"$2"}
}

# demand PROGRAM OLDEST refuses what is older.
demand() {
  ((major > ${2%.*} || major == ${2%.*} && minor >= ${2#*.})) || refuse "$dir/$1 is $found, and $2 is the oldest that is supported"
}

version kube-apiserver 'Kubernetes v'
demand kube-apiserver "$oldest"
apiserver=$found
version etcd 'etcd Version: '
demand etcd "$oldest_etcd"
echo "control plane: kube-apiserver $apiserver and etcd $found from KUBEBUILDER_ASSETS, $dir"
