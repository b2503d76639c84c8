#!/usr/bin/env bash
# Starts a Kubernetes cluster of one node, node1, as root: etcd, kube-apiserver, kube-controller-manager, kube-scheduler,
# containerd and kubelet, in mount, process and network namespaces of their own. The cluster ends with PID 1 of these.
#   up.sh [IMAGE.tar...]      with these images on the node
set -euo pipefail
. "$(dirname "$0")/common.sh"
[ "$(id -u)" = 0 ] || fail 'needs root'
if init_pid >/dev/null; then fail "a cluster runs already; end it with $cluster/down.sh"; fi
umask 077
rm -rf --one-file-system "$run" "$log" "$etc" "$data"
mkdir -p "$run" "$log" "$etc"/{pki,sysctl} "$data"/{etcd,hostpath-volumes}

# Mount points that the machine has not are made, and removed again by down.sh.
for folder in /var/lib/kubelet /var/log/pods /var/log/containers /run/containerd /var/lib/cni /tmp/hostpath_pv; do
  [ -d "$folder" ] || { mkdir -p "$folder" && echo "$folder" >>"$run/created"; }
done

openssl ecparam -name prime256v1 -genkey -noout -out "$etc/pki/ca.key"
openssl req -x509 -new -key "$etc/pki/ca.key" -subj /CN=cluster-ca -days 3650 -out "$etc/pki/ca.crt" \
  -addext keyUsage=critical,keyCertSign,cRLSign,digitalSignature 2>/dev/null
api_names=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc
certificate apiserver /CN=kube-apiserver serverAuth \
  "$api_names,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:$api_address"
certificate apiserver-kubelet-client /O=system:masters/CN=apiserver-kubelet-client clientAuth
certificate admin /O=system:masters/CN=admin clientAuth
certificate controller-manager /CN=system:kube-controller-manager clientAuth
certificate scheduler /CN=system:kube-scheduler clientAuth
openssl genrsa -out "$etc/pki/service-accounts.key" 2048 2>/dev/null
openssl rsa -in "$etc/pki/service-accounts.key" -pubout -out "$etc/pki/service-accounts.pub" 2>/dev/null
for name in admin controller-manager scheduler; do kubeconfig "$name" "$etc/$name.kubeconfig"; done

# Containers read both.
printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$etc/hosts"
: >"$etc/resolv.conf"
chmod 644 "$etc/hosts" "$etc/resolv.conf"

# The values that kubelet wants in /proc/sys. init.sh mounts them there, so that kubelet leaves the machine's own alone.
echo 1 >"$etc/sysctl/vm.overcommit_memory"
echo 0 >"$etc/sysctl/vm.panic_on_oom"
echo 10 >"$etc/sysctl/kernel.panic"
echo 1 >"$etc/sysctl/kernel.panic_on_oops"
echo 1000000 >"$etc/sysctl/kernel.keys.root_maxkeys"
echo 25000000 >"$etc/sysctl/kernel.keys.root_maxbytes"
node_config 1

umask 022 # the programs need the usual one
setsid unshare --mount --pid --net --fork --kill-child --mount-proc \
  /bin/bash "$cluster/init.sh" 1 >"$log/init-node1.log" 2>&1 </dev/null &
unshare=$!
for _ in $(seq 100); do # unshare's only child is PID 1 of the namespace
  init=$(cut -d ' ' -f 1 "/proc/$unshare/task/$unshare/children" 2>/dev/null || true)
  if [ -n "$init" ] && grep -q '^NSpid:.*[[:space:]]1$' "/proc/$init/status"; then
    echo "$init" >"$run/init.pid"
    break
  fi
  sleep 0.05
done
init_pid >/dev/null || fail "no namespace was made; see $log/init-node1.log"

wait_until 60 'socket of containerd' test -S "$run/node1/containerd.sock"
import_images 1 "$@"
wait_until 120 'API server is ready' kubectl get --raw /readyz
wait_until 120 'node1 is Ready' node_ready 1
wait_until 60 'default ServiceAccount' kubectl --namespace default get serviceaccount default
say 'node1 is Ready'
