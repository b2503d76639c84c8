# shellcheck shell=bash
# shellcheck disable=SC2154 # run.sh gives setups and the names of images
# The reader has the bucket of a Velero 1.16 that made its backups with restic, and its password. That server is gone with all its objects. He
# has done steps 1 and 2 of the guide for nightly backups with them.
# shellcheck source=common.sh
. "$setups/common.sh"

prepare() {
  start_s3
  local_volumes
  install_velero velero-1.16 "$velero_116_image" restic --prefix cluster-1 --use-node-agent
  velero_agents
  kubectl apply -f plimsoll/docs/guides/ledger.yaml
  kubectl -n accounts rollout status statefulset/ledger
  local name
  for name in ledger-1 ledger-2; do
    velero-1.16 backup create $name --include-namespaces accounts --default-volumes-to-fs-backup --wait
    kubectl -n velero wait --for=jsonpath='{.status.phase}'=Completed backup/$name --timeout 1s
  done
  kubectl -n velero get podvolumebackups
  kubectl -n velero get secret velero-repo-credentials -o jsonpath='{.data.repository-password}' | base64 -d >password.txt
  velero-1.16 uninstall --force
  kubectl wait --for=delete namespace/velero --timeout 5m
  write_location
  steps nightly-volume-backup '1. 2.' # which keeps this password.txt
}

before() {
  case $1 in
    # A new server, with the same bucket. It finds the copies there within a minute.
    velero\ restore\ create*)
      install_velero velero "$velero_image" kopia --prefix cluster-1 --use-node-agent
      velero_agents
      until kubectl -n velero get backup ledger-2-kopia; do sleep 5; done
      ;;
  esac
}
