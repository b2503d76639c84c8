# shellcheck shell=bash
# shellcheck disable=SC2154 # run.sh gives setups and the names of images
# The reader has a bucket and its key, an image in a registry, and a StorageClass.
# shellcheck source=common.sh
. "$setups/common.sh"

prepare() {
  start_s3
  local_volumes
  write_location
}
