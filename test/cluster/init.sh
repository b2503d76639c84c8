#!/usr/bin/env bash
# PID 1 of a node's namespaces; up.sh and join.sh start it. Runs containerd and kubelet, and on node 1 the control plane.
#   init.sh N
set -euo pipefail
. "$(dirname "$0")/common.sh"

# start NAME COMMAND...: runs it in the background, with a log of its own.
start() {
  local name=$1
  shift
  "$@" >>"$log/$name.log" 2>&1 &
}

network() {
  ip link set lo up
  ip link add nodes type bridge
  ip address add 10.99.0.1/24 dev nodes
  ip link set nodes up
  ip route add default dev nodes # it leads nowhere: programs that look for their address want a default route
  # Service kubernetes without kube-proxy: the API server listens on all addresses.
  ip address add "$api_address/32" dev lo
}

mounts() {
  local node=$data/node$1 file
  mount --bind "$node/kubelet" /var/lib/kubelet
  # A peer group of its own: otherwise each mount of a volume appears below $node/kubelet, too.
  mount --make-private /var/lib/kubelet
  mount --make-shared /var/lib/kubelet
  mount --bind "$node/pod-logs" /var/log/pods
  mount --bind "$node/container-logs" /var/log/containers
  mount --bind "$node/run-containerd" /run/containerd
  mount --bind "$node/cni" /var/lib/cni
  for file in "$etc"/sysctl/*; do mount --bind "$file" "/proc/sys/$(basename "$file" | tr . /)"; done
  [ "$1" = 1 ] || return 0
  mount --bind "$data/hostpath-volumes" /tmp/hostpath_pv # the controller manager's provisioner makes volumes there
  mount --bind "$etc/hosts" /etc/hosts
}

control_plane() {
  start etcd "$bin/etcd" --name cluster --data-dir "$data/etcd" --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 \
    --listen-peer-urls http://127.0.0.1:2380 --initial-advertise-peer-urls http://127.0.0.1:2380 \
    --initial-cluster cluster=http://127.0.0.1:2380
  start apiserver "$bin/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 \
    --bind-address=0.0.0.0 --secure-port=443 --advertise-address=10.99.0.1 --service-cluster-ip-range="$service_range" \
    --client-ca-file="$etc/pki/ca.crt" --tls-cert-file="$etc/pki/apiserver.crt" --tls-private-key-file="$etc/pki/apiserver.key" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$etc/pki/service-accounts.pub" \
    --service-account-signing-key-file="$etc/pki/service-accounts.key" --authorization-mode=Node,RBAC \
    --enable-admission-plugins=NodeRestriction --allow-privileged=true --event-ttl=1h \
    --kubelet-client-certificate="$etc/pki/apiserver-kubelet-client.crt" \
    --kubelet-client-key="$etc/pki/apiserver-kubelet-client.key" \
    --kubelet-certificate-authority="$etc/pki/ca.crt" --kubelet-preferred-address-types=Hostname
  # The controller manager ends if the API server does not answer.
  until "$bin/kubectl" --kubeconfig "$etc/admin.kubeconfig" get --raw /readyz >/dev/null 2>&1; do sleep 0.2; done
  start controller-manager "$bin/kube-controller-manager" --bind-address=127.0.0.1 --leader-elect=false \
    --kubeconfig="$etc/controller-manager.kubeconfig" --authentication-kubeconfig="$etc/controller-manager.kubeconfig" \
    --authorization-kubeconfig="$etc/controller-manager.kubeconfig" --use-service-account-credentials=true \
    --service-account-private-key-file="$etc/pki/service-accounts.key" --root-ca-file="$etc/pki/ca.crt" \
    --cluster-signing-cert-file="$etc/pki/ca.crt" --cluster-signing-key-file="$etc/pki/ca.key" \
    --enable-hostpath-provisioner=true --flex-volume-plugin-dir="$data/node1/volume-plugins" --node-monitor-period=2s
  start scheduler "$bin/kube-scheduler" --bind-address=127.0.0.1 --leader-elect=false \
    --kubeconfig="$etc/scheduler.kubeconfig" --authentication-kubeconfig="$etc/scheduler.kubeconfig" \
    --authorization-kubeconfig="$etc/scheduler.kubeconfig"
}

main() {
  local node=node$1
  mount --make-rshared /
  [ "$1" != 1 ] || network
  mounts "$1"
  cd "$cache"
  PATH=$bin:$PATH
  start "containerd-$node" containerd -c "$etc/$node/containerd.toml"
  [ "$1" != 1 ] || control_plane
  until [ -S "$run/$node/containerd.sock" ]; do sleep 0.1; done
  start "kubelet-$node" "$bin/kubelet" --config="$etc/$node/kubelet.yaml" --kubeconfig="$etc/$node/kubelet.kubeconfig" \
    --root-dir=/var/lib/kubelet --cert-dir="$etc/pki/$node" --hostname-override="$node" --node-ip="10.99.0.$1" --v=2
  # As PID 1 it gets the orphans of the namespace; waiting reaps them.
  trap 'exit 0' TERM
  while :; do
    sleep 3600 &
    wait $! || true
  done
}

main "$@"
