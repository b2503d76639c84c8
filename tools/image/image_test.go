package main

import (
	"archive/tar"
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const testTag = "localhost/plimsoll/node-agent:test"

// entry is what a layer says of a file.
type entry struct {
	Mode    int64
	UID     int
	Time    int64
	Content string
}

func TestArchive(t *testing.T) {
	t.Parallel()
	path := buildArchive(t, newRoot(t))
	img, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if file.OS != "linux" || file.Architecture != "arm64" || file.Created.Unix() != 1700000000 {
		t.Errorf("made for %s/%s at %s, want linux/arm64 at 1700000000", file.OS, file.Architecture, file.Created)
	}
	want := v1.Config{
		User: "65532:65532", Env: []string{"PATH=/usr/local/bin"}, Entrypoint: []string{"/usr/local/bin/node-agent"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "Plimsoll node agent",
			"org.opencontainers.image.description": "Backs up and restores pod volumes for Velero with restic and kopia",
			"org.opencontainers.image.source":      "https://github.com/plimsoll-io/plimsoll",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     "v1.2.3",
			"org.opencontainers.image.revision":    "c0ffee",
			"org.opencontainers.image.created":     "2023-11-14T22:13:20Z",
			"io.plimsoll.restic.version":           "0.18.1",
		},
	}
	if diff := cmp.Diff(want, file.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	wantFiles := map[string]entry{
		"etc/": {Mode: 0o755, Time: 1700000000}, "etc/passwd": {Mode: 0o644, Time: 1700000000, Content: "root"},
		"tmp/": {Mode: 0o1777, Time: 1700000000},
		"usr/": {Mode: 0o755, Time: 1700000000}, "usr/agent": {Mode: 0o755, Time: 1700000000, Content: "program"},
	}
	if diff := cmp.Diff(wantFiles, layerFiles(t, img)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

// TestArchiveIsReproducible packs one image from files that differ in all that depends on who made them and when.
func TestArchiveIsReproducible(t *testing.T) {
	t.Parallel()
	first, second := newRoot(t), newRoot(t)
	for path, mode := range map[string]os.FileMode{"etc": 0o700, "etc/passwd": 0o600, "usr/agent": 0o700} {
		if err := os.Chmod(filepath.Join(second, path), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(second, path), time.Time{}, time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
	}
	a, err := os.ReadFile(buildArchive(t, first))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(buildArchive(t, second))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a, b) {
		t.Error("the same image gave two archives")
	}
}

func TestArchiveRefusesLinksThatLeaveIt(t *testing.T) {
	t.Parallel()
	for _, target := range []string{"/etc/shadow", "../../etc/shadow", "missing"} {
		root := newRoot(t)
		if err := os.Symlink(target, filepath.Join(root, "link")); err != nil {
			t.Fatal(err)
		}
		output := filepath.Join(t.TempDir(), "image.tar")
		if err := run(archiveArgs(root, output)); err == nil || !strings.Contains(err.Error(), "no file of the image") {
			t.Errorf("%s: got %v, want a refusal", target, err)
		}
		if _, err := os.Stat(output); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: an archive is there: %v", target, err)
		}
	}
}

func TestLastStage(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		dockerfile string
		given      map[string]string
		wantErr    string
	}{
		"no stage":            {"ARG X=1\n", nil, "FROM scratch"},
		"another base":        {"FROM debian\n", nil, "FROM scratch"},
		"unknown instruction": {"FROM scratch\nRUN true\n", nil, "RUN true: unknown instruction"},
		"no value":            {"FROM scratch\nARG X\n", nil, "ARG X: no value"},
		"value without ARG":   {"FROM scratch\n", map[string]string{"X": "1"}, "given are [X]"},
		"bad entry point":     {"FROM scratch\nENTRYPOINT node-agent\n", nil, "ENTRYPOINT node-agent"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := lastStage(tc.dockerfile, tc.given); err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("got %v, want an error with %q", err, tc.wantErr)
			}
		})
	}
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ca-certificates.crt")
	if err := run([]string{"certificates", path}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		names[certificate.Subject.CommonName] = true
	}
	// The authorities of S3, Azure and Google Cloud storage, and the one most used for anything else.
	for _, want := range []string{"Amazon Root CA 1", "DigiCert Global Root G2", "GTS Root R1", "ISRG Root X1"} {
		if !names[want] {
			t.Errorf("no %s among %d authorities", want, len(names))
		}
	}
}

// newRoot returns a folder with the files of a small image.
func newRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"etc", "tmp", "usr"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		os.Chmod(filepath.Join(root, "tmp"), 0o777|os.ModeSticky),
		os.WriteFile(filepath.Join(root, "etc", "passwd"), []byte("root"), 0o644),
		os.WriteFile(filepath.Join(root, "usr", "agent"), []byte("program"), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	return root
}

// archiveArgs are the arguments for an image with the repository's Dockerfile.
func archiveArgs(root, output string) []string {
	return []string{
		"archive", "-root", root, "-dockerfile", "../../Dockerfile", "-tag", testTag, "-output", output, "-arch", "arm64",
		"-epoch", "1700000000", "-arg", "VERSION=v1.2.3", "-arg", "COMMIT=c0ffee", "-arg", "CREATED=2023-11-14T22:13:20Z", "-arg", "RESTIC=0.18.1",
	}
}

func buildArchive(t *testing.T, root string) string {
	t.Helper()
	output := filepath.Join(t.TempDir(), "image.tar")
	if err := run(archiveArgs(root, output)); err != nil {
		t.Fatal(err)
	}
	return output
}

// layerFiles returns the files of an image with one layer.
func layerFiles(t *testing.T, img v1.Image) map[string]entry {
	t.Helper()
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v; want 1", len(layers), err)
	}
	stream, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	packed, err := io.ReadAll(stream)
	if err != nil {
		t.Fatal(err)
	}
	if end := make([]byte, 1024); !bytes.HasSuffix(packed, end) {
		t.Error("the layer does not end as a tar file must")
	}
	files := map[string]entry{}
	for r := tar.NewReader(bytes.NewReader(packed)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = entry{Mode: header.Mode, UID: header.Uid, Time: header.ModTime.Unix(), Content: string(content)}
	}
}
