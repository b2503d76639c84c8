package repository

import (
	"path/filepath"
	"slices"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// environment fills in the worker's environment from the agent's and from credentials.
type environment struct {
	lookup func(name string) string // the agent's variable, or ""
	repo   *uploader.Repository
}

// set gives the worker a variable, unless the value is empty.
func (e environment) set(name, value string) {
	if value != "" {
		e.repo.Env[name] = uploader.Secret(value)
	}
}

// setFile gives the worker a variable that names a file, and access to the file. Kubernetes mounts Secrets and tokens as
// links into a directory beside them that is replaced at each rotation, so access is to the directory.
func (e environment) setFile(name, path string) {
	if path == "" {
		return
	}
	e.set(name, path)
	e.readPath(filepath.Dir(path))
}

func (e environment) readPath(path string) {
	if !slices.Contains(e.repo.ReadPaths, path) {
		e.repo.ReadPaths = append(e.repo.ReadPaths, path)
	}
}

// pass gives the worker variables of the agent.
func (e environment) pass(names ...string) {
	for _, name := range names {
		e.set(name, e.lookup(name))
	}
}

// passFile gives the worker a variable of the agent that names a file, and access to the file.
func (e environment) passFile(name string) { e.setFile(name, e.lookup(name)) }

// passNetwork gives the worker what every program of Go needs to reach the network as the agent does.
func (e environment) passNetwork() {
	e.pass("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
	e.passFile("SSL_CERT_FILE")
	dirs := e.lookup("SSL_CERT_DIR")
	e.set("SSL_CERT_DIR", dirs)
	for _, dir := range filepath.SplitList(dirs) {
		e.readPath(dir)
	}
}

// passSwift gives the worker the variables that restic's swift backend reads.
func (e environment) passSwift() {
	e.pass("ST_AUTH", "ST_USER", "ST_KEY", "SWIFT_DEFAULT_CONTAINER_POLICY",
		"OS_AUTH_URL", "OS_REGION_NAME", "OS_USERNAME", "OS_USER_ID", "OS_PASSWORD",
		"OS_USER_DOMAIN_NAME", "OS_USER_DOMAIN_ID", "OS_PROJECT_NAME", "OS_PROJECT_DOMAIN_NAME", "OS_PROJECT_DOMAIN_ID",
		"OS_TENANT_ID", "OS_TENANT_NAME", "OS_TRUST_ID", "OS_STORAGE_URL", "OS_AUTH_TOKEN",
		"OS_APPLICATION_CREDENTIAL_ID", "OS_APPLICATION_CREDENTIAL_NAME", "OS_APPLICATION_CREDENTIAL_SECRET")
}
