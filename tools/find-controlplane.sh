#!/usr/bin/env bash
# Saves the minutes that building etcd and Kubernetes takes: puts one of their programs where it is wanted if setup-envtest has
# installed it, or can download it (it checks the SHA-512 in its index). Exit code 1: it has to be built.
#
#   find-controlplane.sh OUTPUT VERSION
#
# OUTPUT's last part is etcd, kube-apiserver or kubectl, VERSION such as 1.36. ENVTEST_INDEX names another index, and
# PARTS=build turns the search off. Without a network it takes seconds.
set -euo pipefail
output=$1 version=$2
name=$(basename "$output")
index=${ENVTEST_INDEX:-https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml}

build() {
  echo "$name: $1; it is built"
  exit 1
}

# reaches URL: whether its host answers, or the proxy that has to be asked. A network that drops packets costs 3 s.
reaches() {
  local proxy=${HTTPS_PROXY:-${https_proxy:-}} at port=443
  [ -z "${ENVTEST_INDEX:-}" ] || return 0
  at=${proxy:-$1} && at=${at#*://} && at=${at%%/*} && at=${at##*@}
  case $at in
    *:*) port=${at##*:} ;;
    *) [[ $proxy != http://* ]] || port=80 ;;
  esac
  # shellcheck disable=SC2016 # the inner shell expands it
  timeout 3 bash -c ': <>"/dev/tcp/$0/$1"' "${at%:*}" "$port" 2>/dev/null
}

[ "${PARTS:-}" != build ] || exit 1
store=${XDG_DATA_HOME:-$HOME/.local/share}/kubebuilder-envtest/k8s # setup-envtest's, where it is not told another
if ! compgen -G "$store/$version.*" >/dev/null && ! reaches "$index"; then
  build 'setup-envtest has not installed it, and its server cannot be reached'
fi
make --no-print-directory --silent bin/setup-envtest
if dir=$(bin/setup-envtest use "$version.x" --installed-only --print path 2>/dev/null); then
  from='installed by setup-envtest'
else
  echo "$name: downloading Kubernetes $version with setup-envtest"
  dir=$(timeout 600 bin/setup-envtest use "$version.x" --index "$index" --print path 2>&1) || build "no download ($(tail -n 1 <<<"$dir"))"
  from='downloaded by setup-envtest'
fi
# What is there may be for another processor, or not what its folder says.
said=$("$dir/kube-apiserver" --version 2>&1) || build "$dir/kube-apiserver does not run"
[[ $said == "Kubernetes v$version."* ]] || build "$dir has $said instead of $version"
[ -x "$dir/$name" ] || build "it is not in $dir"
mkdir -p "$(dirname "$output")"
install -m 755 "$dir/$name" "$output.found"
mv "$output.found" "$output"
echo "$name: ${said#Kubernetes }, $from in $dir"
