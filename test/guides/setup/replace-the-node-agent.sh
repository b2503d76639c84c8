# shellcheck shell=bash
# shellcheck disable=SC2154 # run.sh gives setups and the names of images
# The reader has a Velero server with its node agent.
# shellcheck source=common.sh
. "$setups/common.sh"

prepare() {
  start_s3
  install_velero velero "$velero_image" kopia --use-node-agent
  velero_agents
}
