# The image of the node agent, with restic, of the restore controller, and of kubectl-plimsoll for CronJobs that back up a
# volume. `make image` builds it, with an engine or without: then tools/image reads the last stage of this file and packs the same files. Nothing is fetched but this base and Go modules, which the go.sum
# files fix, restic's source and the certificate authorities among them.
ARG GO_VERSION=1.26
FROM --platform=$BUILDPLATFORM golang:${GO_VERSION}-bookworm AS build
WORKDIR /src
COPY . .
ARG TARGETOS=linux
ARG TARGETARCH=amd64
ARG VERSION=dev
ARG COMMIT=unknown
ARG RESTIC
ARG SOURCE_DATE_EPOCH=0
RUN GOOS=$TARGETOS GOARCH=$TARGETARCH make bin/image/files \
      VERSION="$VERSION" COMMIT="$COMMIT" RESTIC="$RESTIC" SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH"

FROM scratch
ARG VERSION
ARG COMMIT
ARG CREATED
ARG RESTIC
LABEL org.opencontainers.image.title="Plimsoll node agent"
LABEL org.opencontainers.image.description="Backs up and restores pod volumes for Velero with restic and kopia"
LABEL org.opencontainers.image.source="https://github.com/plimsoll-io/plimsoll"
LABEL org.opencontainers.image.licenses="Apache-2.0"
LABEL org.opencontainers.image.version="$VERSION"
LABEL org.opencontainers.image.revision="$COMMIT"
LABEL org.opencontainers.image.created="$CREATED"
LABEL io.plimsoll.restic.version="$RESTIC"
COPY --from=build /src/bin/image/files/ /
ENV PATH="/usr/local/bin"
# Enough for the restore controller, and for `restore-wait` in the init container of a restored pod. The DaemonSet sets root, which the server needs to
# read and write the files of all users.
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/node-agent"]
