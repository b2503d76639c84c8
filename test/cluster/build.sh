#!/usr/bin/env bash
# Puts what a node needs into the cache: etcd and the programs of Kubernetes, built from the modules of test/controlplane by
# the Makefile, and a pause image. Installs containerd, runc and the CNI plugins from Debian's packages if they are missing.
# About 10 minutes on 2 cores the first time, 2 seconds afterwards.
set -euo pipefail
. "$(dirname "$0")/common.sh"

# required FOLDER MODULE: prints the version of MODULE that the go.mod in FOLDER requires.
required() { sed -n "s#^.*[[:space:]]*$2 \(v[0-9.]*\)\( //.*\)\{0,1\}\$#\1#p" "$repository/test/controlplane/$1/go.mod" | head -n 1; }

version_of() {
  if [ "$(basename "$1")" = kubectl ]; then "$1" version --client; else "$1" --version; fi
}

# program NAME VERSION: builds it unless the cache has it in that version.
program() {
  if [ -x "$bin/$1" ] && [[ "$(version_of "$bin/$1" 2>/dev/null)" == *"${2#v}"* ]]; then return; fi
  make --no-print-directory -C "$repository" "bin/controlplane/$1"
  install "$repository/bin/controlplane/$1" "$bin/$1.new" && mv "$bin/$1.new" "$bin/$1"
}

# The image's program and the image; rebuilt when the program differs from that in the cache.
pause() {
  local root
  root=$(mktemp -d)
  (cd "$repository" && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o "$root/pause" ./test/cluster/pause)
  if ! [ -s "$img/pause.tar" ] || ! cmp -s "$root/pause" "$bin/pause"; then
    (cd "$repository" && go run ./tools/image archive -root "$root" -dockerfile test/cluster/pause/Dockerfile \
      -tag "$pause_image" -output "$img/pause.tar")
    install "$root/pause" "$bin/pause"
  fi
  rm -rf "$root"
}

packages() {
  local missing=() entry
  for entry in containerd:containerd ctr:containerd runc:runc ip:iproute2 openssl:openssl nsenter:util-linux; do
    command -v "${entry%%:*}" >/dev/null || missing+=("${entry#*:}")
  done
  cni_folder >/dev/null || missing+=(containernetworking-plugins)
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || fail "missing: ${missing[*]} (the names of Debian's packages); install them"
  echo "cluster: installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

mkdir -p "$bin" "$img"
program etcd "$(required etcd go.etcd.io/etcd/server/v3)"
for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
  program "$name" "$(required kubernetes k8s.io/kubernetes)"
done
packages
pause
