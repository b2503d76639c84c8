# shellcheck shell=bash
# shellcheck disable=SC2034 # the scripts that source this file use the variables
# Paths and functions that the scripts of this folder share.

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cluster=$repository/test/cluster

# cache holds the programs (bin) and the pause image (img), which stay, and what a running cluster writes, which goes with it.
cache=${CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/realk8s}
bin=$cache/bin img=$cache/img run=$cache/run log=$cache/log etc=$cache/etc data=$cache/data

# Everything listens in the cluster's own network namespace, so that no port can clash with one of the machine.
api_address=10.96.0.1 # of Service kubernetes: the first of service_range
service_range=10.96.0.0/16
pause_image=localhost/realk8s/pause:1
cgroup=plimsoll-cluster${CLUSTER_CACHE:+-$(cksum <<<"$CLUSTER_CACHE" | cut -d ' ' -f 1)}

# /sys/fs/cgroup/NAME/cgroup.procs exists for each hierarchy of version 1; version 2 has one hierarchy.
cgroup_hierarchies() {
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    echo /sys/fs/cgroup
    return
  fi
  local hierarchy
  for hierarchy in /sys/fs/cgroup/*; do
    [ ! -e "$hierarchy/cgroup.procs" ] || echo "$hierarchy"
  done
}

fail() {
  echo "cluster: $*" >&2
  exit 1
}

say() { printf 'cluster: %s (%s s)\n' "$*" "$SECONDS"; }

# init_pid prints the id of PID 1 of the cluster's namespace, and fails if no cluster runs.
init_pid() {
  local pid
  pid=$(cat "$run/init.pid" 2>/dev/null) && [ -n "$pid" ] || return 1
  tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -q 'test/cluster/init\.sh 1' || return 1
  echo "$pid"
}

kubectl() { "$cluster/kubectl.sh" "$@"; }

# wait_until SECONDS WHAT COMMAND...: returns when COMMAND succeeds.
wait_until() {
  local deadline=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    init_pid >/dev/null || fail "its first process ended; see $log"
    [ "$SECONDS" -lt "$deadline" ] || fail "timeout: $what; see $log"
    sleep 0.2
  done
}

node_ready() {
  [ "$(kubectl get node "node$1" -o jsonpath='{.status.conditions[?(@.type=="Ready")].status}')" = True ]
}

# certificate NAME SUBJECT USAGE [SUBJECT_ALT_NAME]: makes NAME.key and NAME.crt in the PKI's folder, signed by its CA.
certificate() {
  local file=$etc/pki/$1
  openssl ecparam -name prime256v1 -genkey -noout -out "$file.key"
  openssl req -new -key "$file.key" -subj "$2" -out "$file.csr" 2>/dev/null
  {
    echo "extendedKeyUsage=$3"
    echo keyUsage=critical,digitalSignature
    [ -z "${4:-}" ] || echo "subjectAltName=$4"
  } >"$file.ext"
  openssl x509 -req -in "$file.csr" -CA "$etc/pki/ca.crt" -CAkey "$etc/pki/ca.key" -CAcreateserial -days 3650 \
    -extfile "$file.ext" -out "$file.crt" 2>/dev/null
}

# kubeconfig NAME FILE: writes a kubeconfig with the certificate NAME.
kubeconfig() {
  cat >"$2" <<END
apiVersion: v1
kind: Config
current-context: cluster
clusters: [{name: cluster, cluster: {server: "https://127.0.0.1:443", certificate-authority: $etc/pki/ca.crt}}]
users: [{name: user, user: {client-certificate: $etc/pki/$1.crt, client-key: $etc/pki/$1.key}}]
contexts: [{name: cluster, context: {cluster: cluster, user: user}}]
END
}

# node_config N: makes the folders, the cgroup, the certificate and the configuration of node N.
node_config() {
  local node=node$1
  mkdir -p "$etc/$node/cni" "$run/$node" \
    "$data/$node"/{kubelet,containerd,opt,pod-logs,container-logs,cni,run-containerd,volume-plugins}
  node_cgroup "$node"
  certificate "$node" "/O=system:nodes/CN=system:node:$node" serverAuth,clientAuth "DNS:$node,IP:127.0.0.1"
  kubeconfig "$node" "$etc/$node/kubelet.kubeconfig"
  grep -qw "$node" "$etc/hosts" || echo "127.0.0.1 $node" >>"$etc/hosts"
  containerd_config "$node" >"$etc/$node/containerd.toml"
  cni_config "$1" >"$etc/$node/cni/10-bridge.conflist"
  kubelet_config "$1" >"$etc/$node/kubelet.yaml"
}

node_cgroup() {
  local hierarchy folder file
  while read -r hierarchy; do
    for folder in "$hierarchy/$cgroup" "$hierarchy/$cgroup/$1"; do
      mkdir -p "$folder"
      # Version 1: a cpuset is empty at first, and an empty one takes no process.
      for file in cpuset.cpus cpuset.mems; do
        [ ! -e "$hierarchy/$file" ] || [ ! -e "$folder/$file" ] || [ -e "$hierarchy/cgroup.controllers" ] || cat "$hierarchy/$file" >"$folder/$file"
      done
    done
    # Version 2: kubelet wants the controllers to be there.
    for folder in "$hierarchy" "$hierarchy/$cgroup"; do
      [ ! -e "$folder/cgroup.controllers" ] || sed 's/[^ ]*/+&/g' "$folder/cgroup.controllers" >"$folder/cgroup.subtree_control"
    done
  done < <(cgroup_hierarchies)
}

cni_folder() {
  local folder
  for folder in /usr/lib/cni /opt/cni/bin; do
    if [ -x "$folder/bridge" ]; then
      echo "$folder"
      return
    fi
  done
  return 1
}

containerd_config() {
  cat <<END
version = 2
root = "$data/$1/containerd"
state = "$run/$1/containerd"
[grpc]
  address = "$run/$1/containerd.sock"
[debug]
  level = "info"
[plugins."io.containerd.internal.v1.opt"]
  path = "$data/$1/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$pause_image"
  restrict_oom_score_adj = true # root in a container may lack CAP_SYS_RESOURCE, and then may not lower it
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$(cni_folder)"
    conf_dir = "$etc/$1/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "$(command -v runc)"
        SystemdCgroup = false
END
}

cni_config() {
  cat <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods$1", "isGateway": true, "isDefaultGateway": true, "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "$data/node$1/cni/ipam", "ranges": [[{"subnet": "10.244.$1.0/24"}]]}}]}
END
}

kubelet_config() {
  local node=node$1
  cat <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 127.0.0.1
port: $((20250 + $1 * 10))
readOnlyPort: 0
healthzBindAddress: 127.0.0.1
healthzPort: $((20248 + $1 * 10))
tlsCertFile: $etc/pki/$node.crt
tlsPrivateKeyFile: $etc/pki/$node.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $etc/pki/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://$run/$node/containerd.sock
imageServiceEndpoint: unix://$run/$node/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup/$node
cgroupsPerQOS: true
enforceNodeAllocatable: [pods]
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
resolvConf: $etc/resolv.conf
volumePluginDir: $data/$node/volume-plugins
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%}
syncFrequency: 5s
fileCheckFrequency: 20s
nodeStatusUpdateFrequency: 5s
shutdownGracePeriod: 0s
END
}

# import_images N IMAGE...: loads archives of images into the containerd of node N, and the pause image first.
import_images() {
  local socket=$run/node$1/containerd.sock init
  shift
  init=$(init_pid) || fail "no cluster runs"
  # In the mount namespace of the first node: containerd's socket and the archives have the same paths in all of them.
  for archive in "$img/pause.tar" "$@"; do
    nsenter --target "$init" --mount --pid ctr --address "$socket" --namespace k8s.io images import "$archive" \
      >>"$log/import.log" 2>&1 || fail "import $archive; see $log/import.log"
  done
}
