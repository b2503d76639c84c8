#!/bin/sh
# Backs up a file by copying it, and says how far it is, without being a Kubernetes client: docs/volume-plugins.md.
#
#   ENDPOINT=https://plimsoll-plugin-endpoint.velero.svc TOKEN_FILE=token CA_FILE=ca.crt backup.sh BACKUP VOLUME FILE TARGET
#
# It needs curl 7.76 or later.
set -eu
backup=$1 volume=$2 file=$3 target=$4

# ask METHOD PATH BODY prints the answer. The token is not an argument, which all users of the host could read. What the
# endpoint cannot do just now (503) is tried again.
ask() {
	printf 'header = "Authorization: Bearer %s"\n' "$(cat "$TOKEN_FILE")" |
		curl --config - --silent --show-error --fail-with-body --retry 5 --retry-connrefused ${CA_FILE:+--cacert "$CA_FILE"} \
			--request "$1" --header 'Content-Type: application/json' --data "$3" "$ENDPOINT/v1alpha1/$2"
}

bytes() { wc -c <"$1" | tr -d ' '; }

# Not in a pipe, which would succeed when the begin is refused: what the endpoint answers then is no name.
begun=$(ask POST volumepluginbackups "{\"plugin\": \"example.io/shell\", \"backup\": \"$backup\", \"volume\": \"$volume\"}") || {
	printf '%s\n' "$begun" >&2
	exit 1
}
name=$(printf '%s\n' "$begun" | sed 's/^{"name":"\([^"]*\)".*/\1/')
path=volumepluginbackups/$name
total=$(bytes "$file")

cp -- "$file" "$target" &
copy=$!
while kill -0 "$copy" 2>/dev/null; do
	# A report that is lost does no harm: the next one says more.
	[ ! -e "$target" ] || ask PATCH "$path" "{\"bytesDone\": $(bytes "$target"), \"totalBytes\": $total}" >/dev/null || true
	sleep 1
done
if wait "$copy"; then
	ask PATCH "$path" "{\"snapshotID\": \"$(basename "$target")\", \"bytesDone\": $total, \"totalBytes\": $total, \"phase\": \"Completed\"}" >/dev/null
	echo "$name"
else
	ask PATCH "$path" '{"phase": "Failed", "message": "the copy failed"}' >/dev/null
	exit 1
fi
