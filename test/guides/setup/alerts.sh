# shellcheck shell=bash
# shellcheck disable=SC2154 # run.sh gives setups and the names of images
# The reader has done steps 1 and 2 of the guide for nightly backups.
# shellcheck source=common.sh
. "$setups/common.sh"

prepare() {
  start_s3
  local_volumes
  write_location
  steps nightly-volume-backup '1. 2.'
}

before() {
  case $1 in
    # The file is that of the block above.
    *amtool\ check-config*) yaml alerts >alertmanager.yml ;;
  esac
}
