# shellcheck shell=bash
# shellcheck disable=SC2034 # the scripts that source this file use the variables
# What the set-ups share. The shell that runs the commands of a guide reads the set-up of the guide first: its function prepare makes what
# the guide's reader has before he begins. before and after are called with the text of each block, for what the guide lets the reader do
# in other ways than by commands.

s3_address=10.99.0.1:7070 # in the network of the cluster, and not in it: a bucket outlives clusters
s3=http://$s3_address

page() { echo "plimsoll/docs/guides/${1}.md"; }

# start_s3 starts the S3 server with the reader's bucket, `backups`, and writes its key as the guide for nightly backups shows it.
start_s3() {
  local folder
  folder=$(realpath ..)/s3
  mkdir -p "$folder"/{buckets/backups,sidecar}
  versitygw --quiet --port "$s3_address" --access guides --secret guides-secret posix --sidecar "$folder/sidecar" "$folder/buckets" >"$folder/log" 2>&1 &
  s3_pid=$!
  until (exec 9<>"/dev/tcp/${s3_address/://}") 2>/dev/null; do
    kill -0 "$s3_pid" || return 1 # its log says why
    sleep 0.2
  done
  printf '[default]\naws_access_key_id=guides\naws_secret_access_key=guides-secret\n' >credentials.txt
}

# local_volumes makes the default StorageClass, and three local volumes of it on each node.
local_volumes() {
  local node number folder
  {
    printf 'apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata:\n  name: local\n  annotations: {storageclass.kubernetes.io/is-default-class: "true"}\n'
    printf 'provisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n'
    for node in node1 node2; do
      for number in 1 2 3; do
        folder=$(realpath ..)/volumes/$node-$number
        install -d -m 777 "$folder"
        cat <<END
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: $node-$number}
spec:
  storageClassName: local
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  local: {path: "$folder"}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [$node]}]}]}}
END
      done
    done
  } | kubectl apply -f -
}

# yaml GUIDE: prints the file that a guide shows.
# shellcheck disable=SC2016 # these are no commands
yaml() { sed -n '/^```yaml$/,/^```$/p' "$(page "$1")" | sed '/^```/d'; }

# write_location writes location.yaml as the guide for nightly backups shows it, with the address of the bucket.
write_location() {
  yaml nightly-volume-backup | sed "s|s3Url: .*|s3Url: $s3|" >location.yaml
}

# steps GUIDE NUMBERS [SED]: runs the commands of these steps of another guide, as a guide tells its reader. SED changes them.
steps() {
  awk -v wanted=" $2 " '/^## / {inside = index(wanted, " " $2 " ")} /^```/ {code = inside && $0 == "```sh"; next} code' "$(page "$1")" |
    sed "${3:-}" >../steps.sh
  # shellcheck disable=SC1091 # it is made above
  . ../steps.sh
}

# install_velero PROGRAM IMAGE UPLOADER [FLAG...]: installs a Velero server as its own pages say, and waits until it can back up.
install_velero() {
  local program=$1 image=$2 uploader=$3
  shift 3
  "$program" install --image "$image" --plugins "$image" --provider aws --bucket backups --secret-file credentials.txt --use-volume-snapshots=false \
    --backup-location-config "region=us-east-1,s3ForcePathStyle=true,s3Url=$s3" --uploader-type "$uploader" "$@" | tail -n 1
  kubectl -n velero rollout status deployment/velero --timeout 5m
  kubectl -n velero wait --for=jsonpath='{.status.phase}'=Available backupstoragelocation/default --timeout 5m
}

velero_agents() { kubectl -n velero rollout status daemonset/node-agent --timeout 5m; }
