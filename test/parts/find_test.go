package parts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
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

// TestFindRestic: only the restic of the wanted version is taken.
func TestFindRestic(t *testing.T) {
	t.Parallel()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(Restic(t, DefaultRestic), filepath.Join(bin, "restic")); err != nil {
		t.Fatal(err)
	}
	for version, found := range map[string]bool{DefaultRestic: true, "0.1.0": false} {
		output := filepath.Join(t.TempDir(), "restic")
		cmd := exec.CommandContext(t.Context(), filepath.Join(root, "tools", "find-restic.sh"), output, version)
		cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if _, missing := os.Stat(output); (err == nil) != found || (missing == nil) != found {
			t.Errorf("%s: %v, %v: %s", version, err, missing, out)
		}
	}
}
