package uploader

import (
	"cmp"
	"os"
	"path/filepath"
	"strconv"
)

// Environment returns the variables with which a program reaches the repository, and the files and directories outside of secrets
// that it has to read. It writes files with credentials and certificates into secrets, a private directory (mode 0600).
//
// Of the agent's own variables a program gets only those that say how to reach the network. The repository's come after them.
func (r Repository) Environment(secrets string) (env map[string]string, readPaths []string, err error) {
	env, readPaths = map[string]string{}, append(readPaths, r.ReadPaths...)
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE"} {
		if value, ok := os.LookupEnv(name); ok {
			env[name] = value
		}
	}
	if file, ok := env["SSL_CERT_FILE"]; ok {
		readPaths = append(readPaths, file)
	}
	for name, value := range r.Env {
		env[name] = value.Reveal()
	}
	for name, content := range r.Files {
		path := filepath.Join(secrets, "file-"+strconv.Itoa(len(env)))
		if err := os.WriteFile(path, []byte(content.Reveal()), 0o600); err != nil {
			return nil, nil, err
		}
		env[name] = path
	}
	return env, readPaths, r.trust(env, secrets)
}

// systemCertificates are the directories that Go's crypto/x509 reads unless SSL_CERT_DIR names others.
const systemCertificates = "/etc/ssl/certs:/etc/pki/tls/certs"

// trust adds the repository's CA to those that the program trusts. The options of restic and kopia for that would replace them, and
// kopia's is for S3 only.
func (r Repository) trust(env map[string]string, secrets string) error {
	if len(r.CACert) == 0 {
		return nil
	}
	dir := filepath.Join(secrets, "ca")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	env["SSL_CERT_DIR"] = dir + ":" + cmp.Or(env["SSL_CERT_DIR"], systemCertificates)
	return os.WriteFile(filepath.Join(dir, "ca.pem"), r.CACert, 0o600)
}
