# Plimsoll. `make help` lists the targets. Everything that is built lands in bin/ and is built again when what it is
# made from changes; the programs that tests and lint need come from their Go modules, at the versions in go.mod and
# go.sum under tools/ and test/controlplane/. Nothing else is fetched and nothing is installed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
export GOWORK := off

PKG ?= ./...
BENCH ?= .
BENCHTIME ?= 1s
TESTFLAGS ?=

# One folder for each restic that the tests run; test/parts says which of them is the default.
RESTICS := $(addprefix bin/restic-,$(notdir $(wildcard tools/restic/*)))
RESTIC_DEFAULT := $(shell sed -n 's/^const DefaultRestic = "\(.*\)"$$/\1/p' test/parts/parts.go)

# A control plane that somebody else built is used as it is.
ifdef KUBEBUILDER_ASSETS
CONTROLPLANE :=
override KUBEBUILDER_ASSETS := $(abspath $(KUBEBUILDER_ASSETS))
export KUBEBUILDER_ASSETS
else
CONTROLPLANE := bin/controlplane/etcd bin/controlplane/kube-apiserver
endif

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)

##@ Develop

.PHONY: help
help: ## This list.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-zA-Z0-9_\/%.-]+:.*## / {printf "  %-26s %s\n", $$1, $$2}' Makefile

.PHONY: build
build: bin/node-agent ## Build our own programs: static, with version and commit.

.PHONY: test
test: parts ## Run all tests under the race detector on real parts. PKG=./pkg/... TESTFLAGS='-run X'
	go test -race -timeout 30m $(TESTFLAGS) $(PKG)

.PHONY: bench
bench: parts ## Run the benchmarks. PKG=./pkg/... BENCH=Walk BENCHTIME=3s
	go test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem $(PKG)

.PHONY: demo
demo: bin/node-agent bin/restic-$(RESTIC_DEFAULT) $(CONTROLPLANE) velero-crds ## Back up and restore real volumes against a real API server, and compare. DEMO_SIZE=1GiB
	go run ./test/demo

.PHONY: e2e
e2e: ## Run the suite that needs a real cluster (KUBECONFIG).
	@if [ -d test/e2e ]; then \
	  go test -count=1 -timeout 60m ./test/e2e/...; \
	else \
	  echo '*** e2e: THERE IS NO SUITE YET: it comes with issue 5. NOTHING WAS TESTED. ***'; \
	fi

##@ Check

.PHONY: fmt
fmt: bin/golangci-lint ## Format the Go files (gofumpt, import groups).
	bin/golangci-lint fmt

.PHONY: lint
lint: bin/golangci-lint ## Run the linters, vet, staticcheck and the import arrows among them.
	bin/golangci-lint run

.PHONY: generate
generate: ## Make the generated files again.
	go generate ./...

.PHONY: verify
verify: bin/golangci-lint ## Check that go.mod is tidy, files are formatted and generated files are up to date.
	@echo 'go mod tidy -diff'; go mod tidy -diff >/dev/null || { echo 'go.mod or go.sum is not tidy: run go mod tidy'; exit 1; }
	bin/golangci-lint fmt --diff
	before=$$(git status --porcelain; git diff); \
	$(MAKE) --no-print-directory generate; \
	after=$$(git status --porcelain; git diff); \
	[ "$$before" = "$$after" ] || { git status --short; echo 'make generate changes files: commit what it makes'; exit 1; }

##@ Parts

.PHONY: parts
parts: $(RESTICS) bin/kopia bin/versitygw $(CONTROLPLANE) velero-crds ## Build and fetch what the tests run: restic, kopia, an S3 server, etcd, kube-apiserver, CRDs.

.PHONY: controlplane
controlplane: $(CONTROLPLANE) ## Build etcd and kube-apiserver, unless KUBEBUILDER_ASSETS has them.

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
	@tools/build.sh . ./cmd/node-agent $@ '2 min' -ldflags '-s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)'

bin/restic-%: tools/restic/%/go.mod tools/restic/%/go.sum tools/build.sh ## restic in one of the versions under tools/restic.
	@tools/build.sh $(<D) github.com/restic/restic/cmd/restic $@ '1 min' -ldflags '-s -w'

bin/kopia: tools/kopia/go.mod tools/kopia/go.sum tools/build.sh ## kopia's own program, in the version of our library.
	@tools/build.sh $(<D) github.com/kopia/kopia $@ '2 min' -ldflags '-s -w'

bin/versitygw: tools/versitygw/go.mod tools/versitygw/go.sum tools/build.sh ## An S3 server.
	@tools/build.sh $(<D) github.com/versity/versitygw/cmd/versitygw $@ '2 min' -ldflags '-s -w'

bin/golangci-lint: tools/golangci-lint/go.mod tools/golangci-lint/go.sum tools/build.sh ## The linter.
	@tools/build.sh $(<D) github.com/golangci/golangci-lint/v2/cmd/golangci-lint $@ '4 min' \
	  -ldflags "-s -w -X main.version=$$(sed -n 's/.*golangci-lint\/v2 v\([0-9.]*\).*/\1/p' $<)"

# Kubernetes takes its own version from the linker; the API server serves it at /version.
KUBERNETES := test/controlplane/kubernetes
KUBERNETES_VERSION := $(shell sed -n 's/^.*k8s\.io\/kubernetes v\([0-9.]*\).*/\1/p' $(KUBERNETES)/go.mod)
KUBERNETES_MINOR := $(word 2,$(subst ., ,$(KUBERNETES_VERSION)))
KUBERNETES_LDFLAGS := -s -w $(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
  -X $(p).gitVersion=v$(KUBERNETES_VERSION) -X $(p).gitMajor=1 -X $(p).gitMinor=$(KUBERNETES_MINOR)\
  -X $(p).gitTreeState=clean -X $(p).gitCommit=modproxy -X $(p).buildDate=2026-01-01T00:00:00Z)

bin/controlplane/etcd: test/controlplane/etcd/go.mod test/controlplane/etcd/go.sum tools/build.sh ## etcd.
	@tools/build.sh $(<D) go.etcd.io/etcd/server/v3 $@ '1 min' -ldflags '$(KUBERNETES_LDFLAGS)'

bin/controlplane/kube%: $(KUBERNETES)/go.mod $(KUBERNETES)/go.sum tools/build.sh ## kube-apiserver, or kubectl to look into a control plane by hand.
	@tools/build.sh $(<D) k8s.io/kubernetes/cmd/kube$* $@ '5 min' -ldflags '$(KUBERNETES_LDFLAGS)'
