# Plimsoll. `make help` lists the targets. Everything that is built lands in bin/ and is built again when what it is
# made from changes; the programs that tests and lint need come from their Go modules, at the versions in go.mod and
# go.sum under tools/ and test/controlplane/. Nothing else is fetched and nothing is installed, except by make e2e as root
# without KUBECONFIG: it takes containerd, runc and the CNI plugins from Debian's packages if they are missing.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
export GOWORK := off

# The packages that take longest begin first, so that none of them runs alone at the end. Go tests each package once.
PKG ?= ./pkg/uploader/restic ./pkg/uploader/kopia ./pkg/nodeagent ./test/attack ./test/monitoring ./test/volumeplugin ./cmd/kubectl-plimsoll/... ./...
TESTFLAGS ?=

# One folder for each restic that the tests run; test/parts says which of them is the default.
RESTICS := $(addprefix bin/restic-,$(notdir $(wildcard tools/restic/*)))
RESTIC_DEFAULT := $(shell sed -n 's/^const DefaultRestic = "\(.*\)"$$/\1/p' test/parts/parts.go)

# Whose CRDs deploy/ has, like our library for their types.
VELERO := $(shell sed -n 's/^.*vmware-tanzu\/velero v\([0-9.]*\)$$/\1/p' go.mod)

# Prometheus 3.N is its module's version 0.3NN.
PROMETHEUS := $(shell sed -n 's/^.*prometheus\/prometheus v0\.30\{0,1\}\([0-9]\{1,2\}\)\(\.[0-9]*\).*$$/3.\1\2/p' tools/prometheus/go.mod)
ALERTMANAGER := $(shell sed -n 's/^.*prometheus\/alertmanager v\([0-9.]*\).*$$/\1/p' tools/alertmanager/go.mod)

# A control plane that somebody else built is used if its version is supported. What is said of it, makes that are called by this one know.
ifdef KUBEBUILDER_ASSETS
override KUBEBUILDER_ASSETS := $(abspath $(KUBEBUILDER_ASSETS))
KUBERNETES_OLDEST := $(shell sed -n 's/^kubeVersion: ">=\([0-9]*\.[0-9]*\)\..*/\1/p' deploy/chart/Chart.yaml)
export ASSETS_SAID := $(shell tools/check-assets.sh '$(KUBEBUILDER_ASSETS)' '$(KUBERNETES_OLDEST)')
ifneq ($(.SHELLSTATUS),0)
override KUBEBUILDER_ASSETS :=
endif
export KUBEBUILDER_ASSETS
endif
CONTROLPLANE := $(if $(ASSETS_SAID),assets-said) $(if $(KUBEBUILDER_ASSETS),,bin/controlplane/etcd bin/controlplane/kube-apiserver)

# The image: its name, the restic in it, and the time of everything in it.
IMAGE ?= localhost/plimsoll/node-agent
TAG ?= dev
RESTIC ?= $(RESTIC_DEFAULT)
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
CREATED = $(shell date -u -d @$(SOURCE_DATE_EPOCH) +%Y-%m-%dT%H:%M:%SZ)

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
LDFLAGS = -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
# Google's library for buckets links a service mesh that only its gRPC transport uses, and kopia and gocloud.dev use HTTP. Without
# it kopia-worker's and the restore controller's programs are a sixth smaller, and their memory by 11 MiB.
BUILDFLAGS = -tags disable_grpc_modules -ldflags '$(LDFLAGS)'

# Two builds at once, if there is memory for them, use the processors while one of them downloads or links.
BUILDS := $(shell awk '/^MemAvailable:/ { print ($$2 > 6000000 ? 2 : 1) }' /proc/meminfo)

##@ Develop

.PHONY: help
help: ## This list.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-zA-Z0-9_\/%.-]+:.*## / {printf "  %-26s %s\n", $$1, $$2}' Makefile

.PHONY: build
build: bin/node-agent bin/kopia-worker bin/worker-exec bin/restore-controller bin/kubectl-plimsoll ## Build our own programs: static, with version and commit.

# The race detector makes ciphers, hashes and compression several times slower. Without it there, kopia's contract suite takes half of the
# processor time.
RACE := -race $(foreach module,golang.org/x/crypto github.com/chmduquesne/rollinghash github.com/klauspost/compress,-gcflags=$(module)/...=-race=false)
# Nor does a process sleep a second before it exits.
export GORACE := atexit_sleep_ms=0

# The packages share one control plane (test/controlplane/lend). Prints the slowest tests, also of a run that failed. One package more than
# processors at once, because many tests wait. The timeout of a package is for a test that hangs. Vet is one of the linters.
GOTESTSUM = run() { bin/lend bin/gotestsum --format standard-quiet --jsonfile-timing-events bin/tests.json -- $(RACE) -ldflags '-s -w' -p $$(($$(nproc) + 1)) -vet=off -timeout 40m "$$@" $(TESTFLAGS) $(PKG) && code=0 || code=$$?; \
  echo 'The slowest tests:'; bin/gotestsum tool slowest --num 20 --threshold 1s --jsonfile bin/tests.json; return $$code; }; run

.PHONY: test
test: parts-quick bin/gotestsum bin/lend ## Run what matters before a commit, under the race detector on real parts. PKG=./pkg/... TESTFLAGS='-run X'
	@$(GOTESTSUM) -short -parallel $$(($$(nproc) * 2)) # most of these tests wait; with all of make test-all the processors are busy

.PHONY: test-all
test-all: parts bin/gotestsum bin/lend ## Run all tests: those of make test, each version of restic, attacks, browser, monitoring, Velero's programs.
	@$(GOTESTSUM)
	@tools/no-skips.sh '"Action":"skip".*"Test":' bin/tests.json

.PHONY: test-faults
# Its agent and controller have the race detector (rig.Prepare), the suite itself does not: it would take a quarter of the processors.
test-faults: parts ## Break things around a running node agent, one at a time, and print what survived. TESTFLAGS='-test.run TestCancel'
	CGO_ENABLED=0 go test -vet=off -trimpath -tags faults -c -o bin/faults.test ./test/faults
	@test/faults/run.sh $(TESTFLAGS)

# The seeds of make chaos. SEED=N runs one, FIRST=N begins there, PARALLEL=N runs so many at a time, SHRINK=0 does not shrink.
SEEDS ?= 20

.PHONY: chaos
chaos: parts ## Make trouble from seeds around backups and restores, and judge what comes of it. SEEDS=2000, SEED=17
	go test -vet=off $(RACE) -tags chaos -c -o bin/chaos.test ./test/chaos
	@SEEDS="$(SEEDS)" SEED="$(SEED)" FIRST="$(FIRST)" PARALLEL="$(PARALLEL)" SHRINK="$(SHRINK)" test/chaos/run.sh

# BENCHFLAGS='-rows restic -rounds 3' measures less, -dir DIR elsewhere than in /tmp.
BENCHFLAGS ?=

.PHONY: bench
bench: bin/restic-$(RESTIC_DEFAULT) bin/kopia bin/kopia-worker bin/worker-exec ## Compare our data paths with restic, kopia and du, side by side. Takes about an hour on 2 quiet cores.
	go run ./test/bench $(BENCHFLAGS)
	@$(MAKE) --no-print-directory bench-agent

.PHONY: bench-agent
bench-agent: bin/restic-$(RESTIC_DEFAULT) bin/versitygw bin/velero bin/velero-plugin-for-aws $(CONTROLPLANE) velero-crds ## Print the memory of an agent, the time that small volumes take, and the rate at which items are restored.
	@go test -tags bench -count 1 -timeout 60m -run "TestAgentMemory|TestTimeLapse|TestSmallVolumes|TestItemRestore" -v ./test/bench | grep -v '^=== '

# SCALEFLAGS='-agents 10,100' measures with fewer agents, '-labelled -progress-interval 2m -moving 2m' what 1,000 of them can be measured with on 2 processors.
SCALEFLAGS ?=

.PHONY: bench-scale
bench-scale: $(CONTROLPLANE) velero-crds ## Print how the cost of agents grows with their number, by simulation with 10, 100 and 1,000 of them. SCALEFLAGS='-agents 10,100'
	go run ./test/bench/scale $(SCALEFLAGS)

.PHONY: bench-quick
bench-quick: bin/restic-$(RESTIC_DEFAULT) bin/kopia bin/kopia-worker bin/worker-exec ## The same in minutes, with a tenth of the data.
	go run ./test/bench -quick $(BENCHFLAGS)

# Only a cluster that is named on the command line is used, never that of the environment.
.PHONY: demo
ifeq ($(origin KUBECONFIG),command line)
demo: demo-cluster-parts ## Back up and restore real volumes against a real API server, and compare. DEMO_SIZE=1GiB KUBECONFIG=FILE IMAGE=NAME
	@exec bin/demo cluster $(DEMO_FLAGS) $(if $(filter-out file,$(origin IMAGE)),-image '$(IMAGE)') $(if $(KUBELET),-kubelet '$(KUBELET)')
else
demo: ## Back up and restore real volumes against a real API server, and compare. DEMO_SIZE=1GiB KUBECONFIG=FILE IMAGE=NAME
	@SECONDS=0; tools/timed.sh 'parts of the demo' '5 min' $(MAKE) --no-print-directory -j$(BUILDS) demo-parts; DEMO_BUILT=$${SECONDS}s exec bin/demo
endif

DEMO_FLAGS = -kubeconfig '$(KUBECONFIG)'

.PHONY: demo-clean
demo-clean: bin/demo ## Remove what an interrupted demo has left in a cluster. KUBECONFIG=FILE
	@exec bin/demo clean $(DEMO_FLAGS)

.PHONY: demo-parts
demo-parts: bin/node-agent bin/kopia-worker bin/worker-exec bin/restic $(CONTROLPLANE) velero-crds-$(VELERO) bin/demo

.PHONY: demo-cluster-parts
demo-cluster-parts: velero-crds-$(VELERO) bin/demo

.PHONY: bin/demo
bin/demo: bin/node-agent # which shares most packages with it
	@tools/build.sh . ./test/demo $@ '1 min'

.PHONY: e2e
e2e: ## Run the suite that needs a real cluster: that of KUBECONFIG or, as root on Linux, one that test/cluster starts.
	@test/e2e/run.sh

# GUIDES='stuck-backup alerts' runs these, UPDATE=1 writes what the commands print into the guides.
GUIDES ?=

.PHONY: guides
guides: ## Run the commands of docs/guides as they are written, as root on Linux, on a cluster for each guide, and compare what they print. GUIDES='alerts' UPDATE=1
	@test/guides/run.sh $(if $(UPDATE),-update) $(GUIDES)

##@ Check

.PHONY: fmt
fmt: bin/golangci-lint ## Format the Go files (gofumpt, import groups).
	bin/golangci-lint fmt

# Built like the programs, so that the modules in Go's cache serve both.
lint: export CGO_ENABLED := 0
lint: export GOFLAGS := $(shell go env GOFLAGS) -trimpath

.PHONY: lint
lint: bin/golangci-lint bin/deadcode bin/actionlint bin/helm ## Run the linters, vet, staticcheck and the import arrows among them, and look for dead code.
	bin/golangci-lint run
	bin/actionlint
	@if command -v shellcheck >/dev/null; then shellcheck $$(git ls-files '*.sh') .ci/run; \
	elif [ -n "$${CI:-}" ]; then echo 'shellcheck is missing: apt-get install shellcheck'; exit 1; \
	else echo 'shellcheck is not installed: the scripts are not checked'; fi
	bin/helm lint --strict deploy/chart
	@# The plugin of kubectl for other systems, and those of its tests that need nothing of Linux: deadcode checks the types of all that it reads
	@# from source, and reports errors. Compiling a thousand packages for two more systems takes ten minutes.
	for os in darwin windows; do \
		GOOS=$$os bin/deadcode -filter '^$$' ./cmd/kubectl-plimsoll && \
		GOOS=$$os bin/deadcode -test -filter '^$$' ./api/... ./cmd/internal/... ./pkg/text ./pkg/progress ./pkg/volume ./pkg/describe ./pkg/screen || exit 1; \
	done
	GOARCH=arm64 bin/deadcode -filter '^$$' ./cmd/...
	@dead=$$(bin/deadcode -filter '^github.com/plimsoll-io/plimsoll/(api|cmd|pkg)/' ./cmd/... ./examples/...); \
	[ -z "$$dead" ] || { echo "$$dead"; echo 'no program reaches this code: delete it'; exit 1; }

.PHONY: generate
generate: manifests align ## Make the generated files again.
	go generate ./...

# After a change of our own go.mod. Two versions of a library cost the first demo up to a minute and more, and the first make lint three.
.PHONY: align
align: ## Give etcd, kube-apiserver and tools the versions of libraries that our programs have.
	@tools/align.sh go.mod tools/helm
	@tools/align.sh go.mod tools/kopia
	@for tool in velero velero-plugin-for-aws velero-store; do tools/align.sh go.mod tools/$$tool || exit 1; done
	@tools/align.sh go.mod $(KUBERNETES)
	@tools/align.sh $(KUBERNETES)/go.mod test/controlplane/etcd
	@tools/align.sh go.mod test/controlplane/etcd

.PHONY: manifests
manifests: bin/controller-gen velero-crds-$(VELERO) ## Make the generated part of api/ and deploy/ again: roles and our CRDs from the code, Velero's from its module.
	bin/controller-gen object crd paths=./api/... output:object:dir=api/v1alpha1 output:crd:dir=deploy/crds
	bin/controller-gen rbac:roleName=plimsoll-volume-plugin,fileName=rbac.yaml paths=./pkg/volumeplugin output:rbac:dir=deploy/volume-plugin
	bin/controller-gen rbac:roleName=plimsoll-node-agent,fileName=rbac.yaml paths=./pkg/nodeagent output:rbac:dir=deploy/node-agent
	bin/controller-gen rbac:roleName=plimsoll-records,fileName=rbac.yaml paths=./pkg/pluginrecords output:rbac:dir=deploy/records
	bin/controller-gen rbac:roleName=plimsoll-repository-tasks,fileName=rbac.yaml paths=./pkg/repositorytask paths=./pkg/filerequest output:rbac:dir=deploy/repository-tasks
	install -m 644 deploy/repository-tasks/files-role.yaml deploy/chart/files/repository-files-role.yaml
	install -m 644 deploy/repository-tasks/rbac.yaml deploy/chart/files/repository-tasks-rbac.yaml
	install -m 644 deploy/repository-tasks-restore/role.yaml deploy/chart/files/repository-tasks-restore-role.yaml
	install -m 644 deploy/node-agent/rbac.yaml deploy/chart/files/rbac.yaml
	install -m 644 deploy/records/rbac.yaml deploy/chart/files/records-rbac.yaml
	rm -rf deploy/chart/files/monitoring && cp -r deploy/monitoring deploy/chart/files/
	install -m 644 deploy/crds/plimsoll.io_*.yaml deploy/chart/files/crds/
	install -m 644 "$$(cd test/controlplane/velero/$(VELERO) && go list -m -f '{{.Dir}}' github.com/vmware-tanzu/velero)"/config/crd/v1/bases/*.yaml deploy/chart/files/crds/

.PHONY: verify
verify: bin/golangci-lint ## Check that go.mod is tidy, files are formatted and generated files are up to date.
	@echo 'go mod tidy -diff'; go mod tidy -diff >/dev/null || { echo 'go.mod or go.sum is not tidy: run go mod tidy'; exit 1; }
	bin/golangci-lint fmt --diff
	before=$$(git status --porcelain; git diff); \
	$(MAKE) --no-print-directory generate; \
	after=$$(git status --porcelain; git diff); \
	[ "$$before" = "$$after" ] || { git status --short; echo 'make generate changes files: commit what it makes'; exit 1; }

##@ Ship

.PHONY: image
image: ## Build the image: with docker or podman where one answers, else as bin/image/node-agent.tar. IMAGE=name TAG=tag
	@if docker info >/dev/null 2>&1; then engine=docker; \
	elif podman info >/dev/null 2>&1; then engine=podman; \
	else exec $(MAKE) --no-print-directory bin/image/node-agent.tar; fi; \
	set -x; $$engine build -t $(IMAGE):$(TAG) $(foreach a,VERSION COMMIT CREATED RESTIC SOURCE_DATE_EPOCH,--build-arg $(a)='$($(a))') .

.PHONY: bin/image/node-agent.tar
bin/image/node-agent.tar: bin/image/files ## The image without an engine, for docker load, podman load and ctr images import.
	@GOARCH= GOOS= go run ./tools/image archive -root $< -tag $(IMAGE):$(TAG) -output $@ -arch $$(go env GOARCH) \
	  -epoch $(SOURCE_DATE_EPOCH) $(foreach a,VERSION COMMIT CREATED RESTIC,-arg $(a)='$($(a))')
	@echo '$(IMAGE):$(TAG) is in $@'

# The systems that have a kubectl.
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64

.PHONY: bin/dist
bin/dist: ## The plugin of kubectl for all systems, as archives with their checksums. VERSION=v0.2.0 PLATFORMS='linux/amd64'
	@rm -rf $@
	@for platform in $(PLATFORMS); do \
	  name=kubectl-plimsoll_$${platform/\//_}; program=kubectl-plimsoll; [ $${platform%/*} != windows ] || program+=.exe; \
	  GOOS=$${platform%/*} GOARCH=$${platform#*/} tools/build.sh . ./cmd/kubectl-plimsoll $@/$$name/$$program '2 min' $(BUILDFLAGS); \
	  install -m 644 LICENSE $@/$$name; \
	  tar --create --sort=name --owner=0 --group=0 --numeric-owner --mtime=@$(SOURCE_DATE_EPOCH) --directory $@/$$name . | gzip -n9 >$@/$$name.tar.gz; \
	  rm -r $@/$$name; \
	done
	@cd $@ && sha256sum -- *.tar.gz | tee checksums.txt

.PHONY: bin/chart
bin/chart: bin/helm ## The chart, as a package that takes the image IMAGE of VERSION. VERSION=v0.2.0 IMAGE=name
	@rm -rf $@ && cp -r deploy/chart $@
	@sed -i 's|^  repository: localhost/.*|  repository: $(IMAGE)|' $@/values.yaml
	@bin/helm package $@ --version '$(VERSION:v%=%)' --app-version '$(VERSION)' --destination bin

# What a workflow needs to know, as NAME=value.
.PHONY: print-%
print-%:
	@echo '$*=$($*)'

# The programs are built here and not taken from bin/, where they may be for another GOARCH. The licenses of all modules
# are in `make sbom`.
.PHONY: bin/image/files
bin/image/files: ## The files of the image.
	@rm -rf $@
	@install -d $(addprefix $@/,usr/local/bin etc/ssl/certs usr/share/licenses/plimsoll usr/share/licenses/restic) && install -d -m 1777 $@/tmp
	@tools/build.sh . ./cmd/node-agent $@/usr/local/bin/node-agent '2 min' $(BUILDFLAGS)
	@tools/build.sh . ./cmd/kopia-worker $@/usr/local/bin/kopia-worker '2 min' $(BUILDFLAGS)
	@tools/build.sh . ./cmd/worker-exec $@/usr/local/bin/worker-exec '1 min' $(BUILDFLAGS)
	@tools/build.sh . ./cmd/restore-controller $@/usr/local/bin/restore-controller '2 min' $(BUILDFLAGS)
	@tools/build.sh . ./cmd/kubectl-plimsoll $@/usr/local/bin/kubectl-plimsoll '2 min' $(BUILDFLAGS)
	@tools/build.sh tools/restic/$(RESTIC) github.com/restic/restic/cmd/restic $@/usr/local/bin/restic '1 min' -ldflags '-s -w'
	@ln -s usr/local/bin/node-agent $@/velero-restore-helper
	@install -m 644 tools/image/files/etc/* $@/etc
	@install -m 644 LICENSE $@/usr/share/licenses/plimsoll
	@install -m 644 "$$(cd tools/restic/$(RESTIC) && go list -m -f '{{.Dir}}' github.com/restic/restic)/LICENSE" $@/usr/share/licenses/restic
	@GOARCH= GOOS= go run ./tools/image certificates $@/etc/ssl/certs/ca-certificates.crt
	@find $@ -exec touch --no-dereference --date=@$(SOURCE_DATE_EPOCH) {} +

.PHONY: sbom
sbom: bin/image/node-agent.cdx.json bin/image/kopia-worker.cdx.json bin/image/worker-exec.cdx.json bin/image/restore-controller.cdx.json bin/image/kubectl-plimsoll.cdx.json bin/image/restic.cdx.json ## List the modules in the image's programs, with licenses, as CycloneDX.

SBOM := -json -licenses -std -noserial -notimestamp

.PHONY: bin/image/node-agent.cdx.json bin/image/kopia-worker.cdx.json bin/image/worker-exec.cdx.json bin/image/restore-controller.cdx.json bin/image/kubectl-plimsoll.cdx.json bin/image/restic.cdx.json
bin/image/node-agent.cdx.json bin/image/kopia-worker.cdx.json bin/image/worker-exec.cdx.json bin/image/restore-controller.cdx.json bin/image/kubectl-plimsoll.cdx.json: bin/image/%.cdx.json: bin/cyclonedx-gomod
	@mkdir -p $(@D)
	CGO_ENABLED=0 bin/cyclonedx-gomod app $(SBOM) -main cmd/$* -output $@ .

bin/image/restic.cdx.json: bin/restic-$(RESTIC) bin/cyclonedx-gomod
	@mkdir -p $(@D)
	bin/cyclonedx-gomod bin $(SBOM) -output $@ $<

.PHONY: bin/image/e2e.tar
bin/image/e2e.tar: bin/versitygw ## The image of the pods of the end-to-end suite.
	@rm -rf bin/image/e2e-files && install -d bin/image/e2e-files/usr/local/bin
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/image/e2e-files/usr/local/bin/workload ./test/e2e/workload
	@install bin/versitygw bin/image/e2e-files/usr/local/bin/versitygw
	@go run ./tools/image archive -root bin/image/e2e-files -dockerfile test/e2e/Dockerfile -tag localhost/plimsoll/e2e:dev -output $@

.PHONY: bin/image/demo.tar
bin/image/demo.tar: bin/image/files bin/versitygw bin/demo ## The image of the demo's pods in a cluster.
	@rm -rf bin/image/demo-files && cp -al bin/image/files bin/image/demo-files
	@install bin/versitygw bin/demo bin/image/demo-files/usr/local/bin
	@GOARCH= GOOS= go run ./tools/image archive -root bin/image/demo-files -dockerfile test/demo/Dockerfile -tag localhost/plimsoll/demo:dev -output $@
	@echo 'localhost/plimsoll/demo:dev is in $@'

.PHONY: bin/image/velero.tar
bin/image/velero.tar: bin/velero bin/velero-restore-helper bin/velero-plugin-for-aws ## The image of a real Velero server, for the end-to-end suite.
	@rm -rf bin/image/velero-files && install -d bin/image/velero-files/usr/local/bin bin/image/velero-files/plugins bin/image/velero-files/home
	@install -d -m 1777 bin/image/velero-files/tmp
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/image/velero-files/usr/local/bin/workload ./test/e2e/workload
	@install bin/velero bin/velero-restore-helper bin/image/velero-files
	@install bin/velero-plugin-for-aws bin/image/velero-files/plugins/velero-plugin-for-aws
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/image/velero-files/plugins/volume-plugin ./examples/volume-plugin
	@go run ./tools/image archive -root bin/image/velero-files -dockerfile test/e2e/server/Dockerfile -tag localhost/plimsoll/velero:dev -output $@

# The version that stands in the module of the last Velero with restic.
VELERO_116 = $(shell sed -n 's/^.*vmware-tanzu\/velero v\([0-9.]*\)\( .*\)\{0,1\}$$/\1/p' tools/velero-1.16/go.mod)

# Velero 1.16 has restic 0.15.0 in its image; 0.16.4 is the nearest of those that are built here.
.PHONY: bin/image/velero-1.16.tar
bin/image/velero-1.16.tar: bin/velero-1.16 bin/restic-0.16.4 bin/velero-plugin-for-aws ## The image of a Velero server that makes backups with restic, with restic.
	@rm -rf bin/image/velero-1.16-files && install -d $(addprefix bin/image/velero-1.16-files/,usr/local/bin plugins home)
	@install -d -m 1777 bin/image/velero-1.16-files/tmp
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -o bin/image/velero-1.16-files/usr/local/bin/workload ./test/e2e/workload
	@install bin/velero-1.16 bin/image/velero-1.16-files/velero
	@install bin/restic-0.16.4 bin/image/velero-1.16-files/usr/local/bin/restic
	@install bin/velero-plugin-for-aws bin/image/velero-1.16-files/plugins/velero-plugin-for-aws
	@go run ./tools/image archive -root bin/image/velero-1.16-files -dockerfile test/e2e/server/Dockerfile -tag localhost/plimsoll/velero-1.16:dev -output $@

.PHONY: bin/e2e.test
bin/e2e.test: ## The end-to-end suite as a program.
	@CGO_ENABLED=0 go test -c -vet=off -trimpath -tags e2e -o $@ ./test/e2e

##@ Parts

.PHONY: parts-quick
parts-quick: bin/kopia-worker bin/worker-exec bin/restic-$(RESTIC_DEFAULT) bin/versitygw bin/setup-envtest $(CONTROLPLANE) bin/controlplane/kubectl bin/helm velero-crds ## Build and fetch what make test runs: our workers, one restic, an S3 server, etcd, kube-apiserver, kubectl, helm, CRDs.

.PHONY: parts
parts: ## And what all tests run: each restic, kopia, Velero's program, plugin and store.
	@$(MAKE) --no-print-directory -j$(BUILDS) parts-all

.PHONY: parts-all
parts-all: parts-quick $(RESTICS) bin/kopia bin/velero bin/velero-plugin-for-aws bin/velero-store

.PHONY: controlplane
controlplane: $(CONTROLPLANE) ## Find or build etcd and kube-apiserver, unless KUBEBUILDER_ASSETS has them in a supported version.

.PHONY: assets-said
assets-said:
	@printenv ASSETS_SAID

.PHONY: velero-crds
velero-crds: $(addprefix velero-crds-,$(notdir $(wildcard test/controlplane/velero/*))) ## Fetch the Velero modules that hold the CRDs.

velero-crds-%: test/controlplane/velero/%/go.mod
	@cd $(<D) && go mod download github.com/vmware-tanzu/velero

.PHONY: clean
clean: ## Remove what was built.
	rm -rf bin

# Go knows best whether it is up to date, and is quick to say so.
.PHONY: bin/node-agent
bin/node-agent: ## The node agent.
	@tools/build.sh . ./cmd/node-agent $@ '2 min' $(BUILDFLAGS)

.PHONY: bin/kopia-worker
bin/kopia-worker: ## The program that the node agent starts for each volume with kopia.
	@tools/build.sh . ./cmd/kopia-worker $@ '2 min' $(BUILDFLAGS)

.PHONY: bin/worker-exec
bin/worker-exec: ## The small program that becomes restic or kopia-worker for each volume.
	@tools/build.sh . ./cmd/worker-exec $@ '1 min' $(BUILDFLAGS)

.PHONY: bin/restore-controller
bin/restore-controller: ## The restore controller.
	@tools/build.sh . ./cmd/restore-controller $@ '2 min' $(BUILDFLAGS)

.PHONY: bin/lend
bin/lend: ## Lends the packages of make test one control plane.
	@tools/build.sh . ./test/controlplane/lend $@ '2 min' $(BUILDFLAGS)

.PHONY: bin/kubectl-plimsoll
bin/kubectl-plimsoll: ## The plugin of kubectl.
	@tools/build.sh . ./cmd/kubectl-plimsoll $@ '2 min' $(BUILDFLAGS)

bin/restic-%: tools/restic/%/go.mod tools/restic/%/go.sum tools/build.sh tools/find-restic.sh ## restic in one of the versions under tools/restic: that in PATH (only the default), its release, or built. PARTS=build
	@PARTS=$(or $(PARTS),$(if $(filter-out $(RESTIC_DEFAULT),$*),download)) tools/find-restic.sh $@ $* $(<D)/checksums || tools/build.sh $(<D) github.com/restic/restic/cmd/restic $@ '1 min' -ldflags '-s -w'

# The demo compares holes. restic restores them from 0.15 on, and 0.16 is the first such version in the tests.
DEMO_RESTIC_OLDEST := 0.16

bin/restic: tools/restic/$(RESTIC_DEFAULT)/go.mod tools/build.sh tools/find-restic.sh ## restic for the demo: the default version, or what PATH has from 0.16 on.
	@tools/find-restic.sh $@ $(RESTIC_DEFAULT) $(<D)/checksums $(DEMO_RESTIC_OLDEST) || tools/build.sh $(<D) github.com/restic/restic/cmd/restic $@ '1 min' -ldflags '-s -w'

bin/kopia: tools/kopia/go.mod tools/kopia/go.sum tools/build.sh ## kopia's own program, in the version of our library.
	@tools/build.sh $(<D) github.com/kopia/kopia $@ '2 min' -ldflags '-s -w'

bin/versitygw: tools/versitygw/go.mod tools/versitygw/go.sum tools/build.sh ## An S3 server.
	@tools/build.sh $(<D) github.com/versity/versitygw/cmd/versitygw $@ '2 min' -ldflags '-s -w'

bin/velero: tools/velero/go.mod tools/velero/go.sum tools/build.sh ## Velero's own CLI, which drives the restore controller.
	@tools/build.sh $(<D) github.com/vmware-tanzu/velero/cmd/velero $@ '4 min' -ldflags '-s -w -X github.com/vmware-tanzu/velero/pkg/buildinfo.Version=v$(VELERO)'

bin/velero-restore-helper: tools/velero/go.mod tools/velero/go.sum tools/build.sh ## Velero's own init container of restored pods.
	@tools/build.sh $(<D) github.com/vmware-tanzu/velero/cmd/velero-restore-helper $@ '1 min' -ldflags '-s -w'

bin/velero-1.16: tools/velero-1.16/go.mod tools/velero-1.16/go.sum tools/build.sh ## The last Velero that makes backups with restic, for the migration in the end-to-end suite.
	@tools/build.sh $(<D) github.com/vmware-tanzu/velero/cmd/velero $@ '4 min' -ldflags '-s -w -X github.com/vmware-tanzu/velero/pkg/buildinfo.Version=v$(VELERO_116)'

bin/velero-plugin-for-aws: tools/velero-plugin-for-aws/go.mod tools/velero-plugin-for-aws/go.sum tools/build.sh ## Velero's plugin for S3, for its server in the end-to-end suite.
	@tools/build.sh $(<D) github.com/vmware-tanzu/velero-plugin-for-aws/velero-plugin-for-aws $@ '3 min' -ldflags '-s -w'

bin/velero-store: tools/velero-store/go.mod tools/velero-store/go.sum tools/velero-store/main.go tools/build.sh ## Velero's own code for backup stores, on a directory.
	@tools/build.sh $(<D) . $@ '3 min' -ldflags '-s -w'

# Of the ways to find what it scrapes, Prometheus gets that of the guide: Kubernetes. Neither has its web pages, which are not in the modules.
bin/prometheus bin/promtool: bin/%: tools/prometheus/go.mod tools/prometheus/go.sum tools/build.sh ## Prometheus, for its guide.
	@tools/build.sh $(<D) github.com/prometheus/prometheus/cmd/$* $@ '5 min' -tags remove_all_sd,enable_kubernetes_sd \
	  -ldflags '-s -w -X github.com/prometheus/common/version.Version=$(PROMETHEUS)'

bin/alertmanager bin/amtool: bin/%: tools/alertmanager/go.mod tools/alertmanager/go.sum tools/build.sh ## Alertmanager, for the same.
	@tools/build.sh $(<D) github.com/prometheus/alertmanager/cmd/$* $@ '3 min' -ldflags '-s -w -X github.com/prometheus/common/version.Version=$(ALERTMANAGER)'

bin/gotestsum: tools/gotestsum/go.mod tools/gotestsum/go.sum tools/build.sh ## Runs tests, and sums up what failed and what was skipped.
	@tools/build.sh $(<D) gotest.tools/gotestsum $@ '1 min' -ldflags '-s -w'

bin/golangci-lint: tools/golangci-lint/go.mod tools/golangci-lint/go.sum tools/build.sh ## The linter.
	@tools/build.sh $(<D) github.com/golangci/golangci-lint/v2/cmd/golangci-lint $@ '4 min' \
	  -ldflags "-s -w -X main.version=$$(sed -n 's/.*golangci-lint\/v2 v\([0-9.]*\).*/\1/p' $<)"

bin/setup-envtest: tools/setup-envtest/go.mod tools/setup-envtest/go.sum tools/build.sh ## Fetches etcd and kube-apiserver.
	@tools/build.sh $(<D) sigs.k8s.io/controller-runtime/tools/setup-envtest $@ '1 min' -ldflags '-s -w'

bin/actionlint: tools/actionlint/go.mod tools/actionlint/go.sum tools/build.sh ## Checks the workflows.
	@tools/build.sh $(<D) github.com/rhysd/actionlint/cmd/actionlint $@ '1 min' -ldflags '-s -w'

bin/deadcode: tools/deadcode/go.mod tools/deadcode/go.sum tools/build.sh ## Finds functions that no program reaches.
	@tools/build.sh $(<D) golang.org/x/tools/cmd/deadcode $@ '1 min' -ldflags '-s -w'

bin/controller-gen: tools/controller-gen/go.mod tools/controller-gen/go.sum tools/build.sh ## Makes roles, CRDs and deep copies from markers in the code.
	@tools/build.sh $(<D) sigs.k8s.io/controller-tools/cmd/controller-gen $@ '1 min' -ldflags '-s -w'

bin/helm: tools/helm/go.mod tools/helm/go.sum tools/build.sh ## Helm, for the tests of the chart.
	@tools/build.sh $(<D) helm.sh/helm/v4/cmd/helm $@ '2 min' -ldflags '-s -w'

bin/cyclonedx-gomod: tools/cyclonedx-gomod/go.mod tools/cyclonedx-gomod/go.sum tools/build.sh ## Lists the modules in a Go program.
	@tools/build.sh $(<D) github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod $@ '1 min' -ldflags '-s -w'

# Kubernetes takes its own version from the linker; the API server serves it at /version.
KUBERNETES := test/controlplane/kubernetes
KUBERNETES_VERSION := $(shell sed -n 's/^.*k8s\.io\/kubernetes v\([0-9.]*\).*/\1/p' $(KUBERNETES)/go.mod)
KUBERNETES_MINOR := $(word 2,$(subst ., ,$(KUBERNETES_VERSION)))
KUBERNETES_LDFLAGS := -s -w $(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
  -X $(p).gitVersion=v$(KUBERNETES_VERSION) -X $(p).gitMajor=1 -X $(p).gitMinor=$(KUBERNETES_MINOR)\
  -X $(p).gitTreeState=clean -X $(p).gitCommit=modproxy -X $(p).buildDate=2026-01-01T00:00:00Z)

bin/controlplane/etcd: test/controlplane/etcd/go.mod test/controlplane/etcd/go.sum tools/build.sh tools/find-controlplane.sh ## etcd: as setup-envtest has it, or built. PARTS=build
	@tools/find-controlplane.sh $@ 1.$(KUBERNETES_MINOR) || tools/build.sh $(<D) go.etcd.io/etcd/server/v3 $@ '1 min' -ldflags '$(KUBERNETES_LDFLAGS)'

bin/controlplane/kube-apiserver bin/controlplane/kubectl: bin/controlplane/kube%: $(KUBERNETES)/go.mod $(KUBERNETES)/go.sum tools/build.sh tools/find-controlplane.sh ## The same.
	@tools/find-controlplane.sh $@ 1.$(KUBERNETES_MINOR) || tools/build.sh $(<D) k8s.io/kubernetes/cmd/kube$* $@ '5 min' -ldflags '$(KUBERNETES_LDFLAGS)'

bin/controlplane/kube%: $(KUBERNETES)/go.mod $(KUBERNETES)/go.sum tools/build.sh ## kube-apiserver and the other programs of Kubernetes, such as kubectl to look into a control plane by hand.
	@tools/build.sh $(<D) k8s.io/kubernetes/cmd/kube$* $@ '5 min' -ldflags '$(KUBERNETES_LDFLAGS)'
