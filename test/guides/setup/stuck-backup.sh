# shellcheck shell=bash
# shellcheck disable=SC2154 # run.sh gives setups and the names of images
# The reader has a Velero server with Plimsoll's node agent, installed as in step 3 of the guide for that.
# shellcheck source=common.sh
. "$setups/common.sh"

prepare() {
  start_s3
  install_velero velero "$velero_image" kopia
  steps replace-the-node-agent 3. '/delete daemonset/d'
}

# The reader stops the storage 15 seconds after the backup has begun, and looks when nothing has moved for more than two minutes.
after() {
  case $1 in
    *velero\ backup\ create\ tuesday*)
      sleep 15
      kill -STOP "$s3_pid"
      sleep 165
      ;;
  esac
}

before() {
  case $1 in
    *watch\ backup\ tuesday*) kill -CONT "$s3_pid" ;;
  esac
}
