#!/usr/bin/env bash
# Runs the commands of guides as they are written, as root on Linux, and compares what they print with what the guide shows. Each
# guide has a cluster of its own of two nodes, from test/cluster. `make guides` calls it.
#   run.sh [-update] [GUIDE...]     GUIDE is a name such as nightly-volume-backup; without one it runs all
set -euo pipefail
cd "$(dirname "$0")/../.."
. test/cluster/common.sh # for cache, log, etc, bin, init_pid
update=()
if [ "${1:-}" = -update ]; then update=(-update) && shift; fi
guides=("$@")
if [ ${#guides[@]} -eq 0 ]; then
  for script in test/guides/setup/*.sh; do
    name=$(basename "$script" .sh)
    [ "$name" = common ] || guides+=("$name")
  done
fi
[ "$(uname -s) $(id -u)" = 'Linux 0' ] || fail 'needs root on Linux'
if init_pid >/dev/null; then fail "a cluster runs already; end it with test/cluster/down.sh"; fi

out=$repository/bin/guides
programs=$out/programs
# The version that the guides name: they install this image, and doctor compares it with the plugin's.
version=v0.1.0
velero_image=velero/velero:v$(make -s print-VELERO | cut -d = -f 2)
velero_116_image=velero/velero:v$(make -s print-VELERO_116 | cut -d = -f 2)

# image NAME DOCKERFILE FOLDER TAG: packs the files of an image.
image() {
  go run ./tools/image archive -root "$3" -dockerfile "$2" -tag "$4" -output "$out/$1.tar"
}

# package NAME: unpacks one of Debian's packages without its examples in Go, and installs nothing. Prints the folder.
package() {
  local folder=$out/packages/$1
  if ! [ -d "$folder" ]; then
    mkdir -p "$folder.partial"
    (cd "$folder.partial" && apt-get download -qq -o APT::Sandbox::User=root "$1" >&2 && dpkg-deb -x ./*.deb . && rm -r ./*.deb usr/share/doc)
    mv "$folder.partial" "$folder"
  fi
  echo "$folder"
}

busybox_image() {
  local busybox applet
  [ -d "$out/packages" ] || apt-get update -qq
  busybox=$(package busybox-static)/bin/busybox
  rm -rf "$out/busybox"
  install -D -t "$out/busybox/bin" "$busybox"
  for applet in $("$busybox" --list); do [ "$applet" = busybox ] || ln -s busybox "$out/busybox/bin/$applet"; done
  image busybox test/guides/images/busybox.Dockerfile "$out/busybox" "busybox:$("$busybox" | sed -n '1s/^BusyBox v\([0-9]*\.[0-9]*\).*/\1/p')"
}

# monitoring_image NAME VERSION PROGRAM...: of Prometheus or Alertmanager.
monitoring_image() {
  local name=$1 version=$2
  shift 2
  rm -rf "${out:?}/$name"
  install -D -t "$out/$name/bin" "$@"
  image "$name" "test/guides/images/$name.Dockerfile" "$out/$name" "prom/$name:v$version"
}

# Only the guide for alerts has them. Compiling them takes minutes.
monitoring_images() {
  make --no-print-directory bin/{prometheus,promtool,alertmanager,amtool}
  monitoring_image prometheus "$(make -s print-PROMETHEUS | cut -d = -f 2)" bin/{prometheus,promtool}
  monitoring_image alertmanager "$(make -s print-ALERTMANAGER | cut -d = -f 2)" bin/{alertmanager,amtool}
  install bin/amtool "$programs"
}

build() {
  make --no-print-directory VERSION=$version IMAGE=registry.example.com/plimsoll/node-agent TAG=$version \
    bin/kubectl-plimsoll bin/velero bin/velero-1.16 bin/versitygw bin/image/node-agent.tar bin/image/velero.tar bin/image/velero-1.16.tar
  test/cluster/build.sh
  rm -rf "$programs" && mkdir -p "$programs"
  install -t "$programs" bin/{kubectl-plimsoll,velero,velero-1.16,versitygw} "$bin/kubectl"
  image velero test/e2e/server/Dockerfile bin/image/velero-files "$velero_image"
  image velero-1.16 test/e2e/server/Dockerfile bin/image/velero-1.16-files "$velero_116_image"
  busybox_image
  if has_alerts; then monitoring_images; fi
  CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$out/guides" ./test/guides
}

has_alerts() { [[ " ${guides[*]} " == *' alerts '* ]]; }

take_down() {
  local code=$? output
  trap - EXIT
  cd "$repository"
  if [ "$code" -ne 0 ] && [ -d "$log" ]; then
    rm -rf "$out/log" && cp -r "$log" "$out/log" && echo "guides: the cluster's logs are in bin/guides/log"
  fi
  output=$(test/cluster/down.sh 2>&1) || { code=1 && echo "guides: taking the cluster down: $output"; }
  rm -rf --one-file-system "$work"
  exit "$code"
}

# run_guide NAME: on a new cluster, in a folder with the checkout `plimsoll`.
run_guide() (
  work=$out/scratch/$1
  trap take_down EXIT
  trap 'exit 130' INT TERM
  images=("$repository/bin/image/node-agent.tar" "$out"/{velero,velero-1.16,busybox}.tar)
  if [ "$1" = alerts ]; then images+=("$out"/{prometheus,alertmanager}.tar); fi
  # Joined by &&, as bash does not end at errors within a condition, where this function is called.
  test/cluster/up.sh "${images[@]}" && test/cluster/join.sh 2 "${images[@]}" &&
    mkdir -p "$work/reader" && ln -s "$repository" "$work/reader/plimsoll" && run_commands "$1" "$work/reader"
)

# run_commands GUIDE FOLDER: in the cluster's network.
run_commands() {
  nsenter --target "$(init_pid)" --net env PATH="$programs:$PATH" KUBECONFIG="$etc/admin.kubeconfig" setups="$repository/test/guides/setup" \
    velero_image="$velero_image" velero_116_image="$velero_116_image" \
    "$out/guides" "${update[@]}" -set-up "$repository/test/guides/setup/$1.sh" -dir "$2" "docs/guides/${1}.md"
}

build
failed=()
for guide in "${guides[@]}"; do
  SECONDS=0
  if run_guide "$guide" >"$out/$guide.log" 2>&1; then
    echo "guides: $guide passed in $SECONDS s"
  else
    failed+=("$guide") && echo "guides: $guide FAILED after $SECONDS s; what it said is in bin/guides/$guide.log:" && tail -n 30 "$out/$guide.log"
  fi
done
[ ${#failed[@]} -eq 0 ] || fail "these guides failed: ${failed[*]}"
