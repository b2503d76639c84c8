package parts

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestFindControlPlane has the real setup-envtest, and a server with archives as it expects them. Their programs only say their
// version.
func TestFindControlPlane(t *testing.T) {
	t.Parallel()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		says      string // the version that the program says
		damaged   bool   // the archive is not what the index says
		away      bool   // there is no server
		installed bool   // by an earlier download
		build     bool   // PARTS=build
		want      string // in the output; empty: nothing is said
		found     bool
	}{
		"downloaded":      {says: "v1.36.7", want: "kube-apiserver: v1.36.7, downloaded by setup-envtest in ", found: true},
		"installed":       {says: "v1.36.7", installed: true, away: true, want: "kube-apiserver: v1.36.7, installed by setup-envtest in ", found: true},
		"damaged":         {says: "v1.36.7", damaged: true, want: "kube-apiserver: no download ("},
		"another version": {says: "v1.35.1", want: "has Kubernetes v1.35.1 instead of 1.36; it is built"},
		"no network":      {away: true, want: "kube-apiserver: no download ("},
		"not wanted":      {says: "v1.36.7", build: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			index := serveEnvtest(t, tc.says, tc.damaged)
			find := func(index, parts string) (string, error) {
				cmd := exec.CommandContext(t.Context(), "tools/find-controlplane.sh", filepath.Join(dir, "kube-apiserver"), "1.36")
				cmd.Dir = root
				cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+filepath.Join(dir, "share"), "ENVTEST_INDEX="+index, "PARTS="+parts)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			if tc.installed {
				if out, err := find(index, ""); err != nil {
					t.Fatalf("install it: %v\n%s", err, out)
				}
				if err := os.Remove(filepath.Join(dir, "kube-apiserver")); err != nil {
					t.Fatal(err)
				}
			}
			if tc.away {
				index = "http://127.0.0.1:1/index.yaml"
			}
			parts := ""
			if tc.build {
				parts = "build"
			}
			out, err := find(index, parts)
			exit, failed := errors.AsType[*exec.ExitError](err)
			if err != nil && !failed || failed && exit.ExitCode() != 1 || failed == tc.found {
				t.Errorf("found %v: %v", tc.found, err)
			}
			if !strings.Contains(out, tc.want) || tc.want == "" && out != "" {
				t.Errorf("it does not say %q:\n%s", tc.want, out)
			}
			said, err := exec.CommandContext(t.Context(), filepath.Join(dir, "kube-apiserver")).Output()
			if (err == nil) != tc.found || tc.found && string(said) != "Kubernetes "+tc.says+"\n" {
				t.Errorf("the program says %q, %v", said, err)
			}
		})
	}
}

// TestFindControlPlaneWithoutNetwork: where neither the server nor a proxy answers, nothing waits for it.
func TestFindControlPlaneWithoutNetwork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, proxy := range map[string]string{"proxy is down": "http://user:secret@127.0.0.1:1/", "proxy without a port": "http://127.0.0.1"} {
		cmd := exec.CommandContext(t.Context(), "tools/find-controlplane.sh", filepath.Join(dir, "etcd"), "1.36")
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+dir, "ENVTEST_INDEX=", "HTTPS_PROXY="+proxy, "PARTS=")
		out, err := cmd.CombinedOutput()
		if want := "etcd: setup-envtest has not installed it, and its server cannot be reached; it is built\n"; err == nil || string(out) != want {
			t.Errorf("%s: got %v, %s\nwant %s", name, err, out, want)
		}
	}
}

// serveEnvtest returns the URL of an index with one archive, whose programs say a version.
func serveEnvtest(t *testing.T, says string, damaged bool) string {
	t.Helper()
	var archive bytes.Buffer
	zip := gzip.NewWriter(&archive)
	files := tar.NewWriter(zip)
	script := fmt.Sprintf("#!/bin/sh\necho Kubernetes %s\n", says)
	for _, program := range []string{"etcd", "kube-apiserver", "kubectl"} {
		header := &tar.Header{Name: "controller-tools/envtest/" + program, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(script))}
		if err := files.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := files.Write([]byte(script)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(files.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	hash := sha512.Sum512(archive.Bytes())
	if damaged {
		hash[0]++
	}
	name := fmt.Sprintf("envtest-v1.36.7-%s-%s.tar.gz", runtime.GOOS, runtime.GOARCH)
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	mux.HandleFunc("/index.yaml", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "releases:\n  v1.36.7:\n    %s:\n      hash: %x\n      selfLink: %s/%s\n", name, hash, server.URL, name)
	})
	mux.HandleFunc("/"+name, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(archive.Bytes()) })
	return server.URL + "/index.yaml"
}

// TestFindRestic: a restic of the wanted version is taken from PATH, or from a server if it is what its checksum says. Where a
// supported version will do, that in PATH is next.
func TestFindRestic(t *testing.T) {
	t.Parallel()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	empty, found, other, garbage := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	plant(t, filepath.Join(empty, "restic"), "exit 1") // before one of this machine
	plant(t, filepath.Join(other, "restic"), "echo restic 0.16.2 compiled with go1.21.3 on linux/amd64")
	plant(t, filepath.Join(garbage, "restic"), "echo 3.2")
	if err := os.Symlink(Restic(t, DefaultRestic), filepath.Join(found, "restic")); err != nil {
		t.Fatal(err)
	}
	// A program that says "restic 1.2.3 compiled with Go".
	published, err := os.ReadFile(filepath.Join("testdata", "restic_1.2.3.bz2"))
	if err != nil {
		t.Fatal(err)
	}
	archive := fmt.Sprintf("restic_1.2.3_%s_%s.bz2", runtime.GOOS, runtime.GOARCH)
	mux := http.NewServeMux()
	mux.HandleFunc("/v1.2.3/"+archive, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(published) })
	mux.HandleFunc("/damaged/v1.2.3/"+archive, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(published[:len(published)-8]) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	right, wrong := sha256.Sum256(published), sha256.Sum256(nil)

	for name, tc := range map[string]struct {
		path, version string
		sum           [sha256.Size]byte
		server        string
		parts         string // PARTS
		oldest        string // that will do
		beside        bool   // another restic in bin is the wanted one
		says          string // the version that is found; empty: the wanted one
		found         bool
		want          string // in the output; empty: nothing is said
	}{
		"in PATH":             {path: found, version: DefaultRestic, found: true, want: "restic: " + DefaultRestic + ", found as "},
		"only a release":      {path: found, version: DefaultRestic, sum: right, server: server.URL, parts: "download", want: "is built"},
		"another is in PATH":  {path: found, version: "1.2.3", sum: right, server: server.URL, found: true, want: "restic: 1.2.3, downloaded from 127.0.0.1"},
		"downloaded":          {path: empty, version: "1.2.3", sum: right, server: server.URL, found: true, want: "restic: 1.2.3, downloaded from 127.0.0.1"},
		"not what it was":     {path: empty, version: "1.2.3", sum: wrong, server: server.URL, want: "has SHA-256 "},
		"cut off":             {path: empty, version: "1.2.3", sum: right, server: server.URL + "/damaged", want: "restic: no download (save "},
		"not published":       {path: empty, version: "1.2.3", sum: right, server: server.URL + "/none", want: "404 Not Found)\nrestic: 1.2.3 is built\n"},
		"no network":          {path: empty, version: "1.2.3", sum: right, server: "http://127.0.0.1:1", want: "connection refused)\nrestic: 1.2.3 is built\n"},
		"by an earlier make":  {path: empty, beside: true, version: "0.17.0", server: server.URL, found: true, want: "restic: 0.17.0, found as "},
		"supported":           {path: other, version: "1.2.4", oldest: "0.16", found: true, says: "0.16.2", want: "restic (the tests have 1.2.4)"},
		"release is better":   {path: other, version: "1.2.3", sum: right, server: server.URL, oldest: "0.16", found: true, want: "downloaded from 127.0.0.1"},
		"too old":             {path: other, version: "1.2.4", oldest: "0.17", want: "is not used, it is 0.16.2 and must be 0.17 or later\nrestic: 1.2.4 is built\n"},
		"no restic":           {path: garbage, version: "1.2.4", oldest: "0.16", want: "is not used, it does not say its version\nrestic: 1.2.4 is built\n"},
		"not for the tests":   {path: other, version: "1.2.4", want: "restic: 1.2.4 is built\n"},
		"built as it is":      {path: other, version: "1.2.4", oldest: "0.16", parts: "build"},
		"checksum is unknown": {path: found, version: "1.2.4", sum: right, server: server.URL, want: "restic: 1.2.4 is built\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			output, checksums := filepath.Join(dir, "restic"), filepath.Join(dir, "checksums")
			if err := os.WriteFile(checksums, fmt.Appendf(nil, "%x  %s\n", tc.sum, archive), 0o600); err != nil {
				t.Fatal(err)
			}
			if tc.beside {
				plant(t, filepath.Join(dir, "restic-"+tc.version), "echo restic "+tc.version+" compiled with go1.21.3 on linux/amd64")
			}
			cmd := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "find-restic.sh"), output, tc.version, checksums, tc.oldest)
			cmd.Env = append(os.Environ(), "PARTS="+tc.parts, "RESTIC_RELEASES="+tc.server, "PATH="+tc.path+":"+os.Getenv("PATH"))
			out, err := cmd.CombinedOutput()
			if (err == nil) != tc.found {
				t.Errorf("found %v: %v", tc.found, err)
			}
			if !strings.Contains(string(out), tc.want) || tc.want == "" && len(out) > 0 {
				t.Errorf("it does not say %q:\n%s", tc.want, out)
			}
			said, err := exec.CommandContext(t.Context(), output, "version").Output()
			if (err == nil) != tc.found || tc.found && !strings.HasPrefix(string(said), "restic "+cmp.Or(tc.says, tc.version)+" ") {
				t.Errorf("the program says %q, %v", said, err)
			}
			if left, err := filepath.Glob(output + ".*"); err != nil || len(left) > 0 {
				t.Errorf("it left %v, %v", left, err)
			}
		})
	}
}
