package backupstore_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// marker is part of every secret value in these tests.
const marker = "HuSh"

// place is where a test's store is, and the same as the directory that the storage keeps its objects in.
type place struct {
	location *velerov1.BackupStorageLocation
	dir      string
	secrets  map[string]map[string][]byte
}

func newPlace(provider string, config map[string]string) *place {
	l := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "default"}}
	l.Spec.Provider = provider
	l.Spec.Config = config
	l.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: "bucket", Prefix: "cluster-a"}
	return &place{location: l, secrets: map[string]map[string][]byte{}}
}

// inDirectory is a place in a directory.
func inDirectory(tb testing.TB) *place {
	tb.Helper()
	p := newPlace("velero.io/fs", nil)
	root := tb.TempDir()
	p.location.Spec.Config = map[string]string{"fspath": root}
	p.dir = filepath.Join(root, "cluster-a")
	if err := os.Mkdir(p.dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	return p
}

// onServer is a place in a bucket of its own of an S3 server.
func onServer(tb testing.TB, server *s3.Server) *place {
	tb.Helper()
	p := newPlace("aws", map[string]string{
		"s3Url": "https://" + server.Endpoint, "region": "us-east-1", "s3ForcePathStyle": "true",
	})
	p.location.Spec.ObjectStorage.Bucket = server.Bucket(tb)
	p.location.Spec.ObjectStorage.CACert = server.CACert
	p.setCredential("[default]\naws_access_key_id = " + server.AccessKey + "\naws_secret_access_key = " + server.SecretKey + "\n")
	p.dir = filepath.Join(server.Dir(p.location.Spec.ObjectStorage.Bucket), "cluster-a")
	return p
}

func (p *place) setCredential(content string) {
	p.secrets["cloud-credentials"] = map[string][]byte{"cloud": []byte(content)}
	p.location.Spec.Credential = &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: "cloud-credentials"}, Key: "cloud",
	}
}

func (p *place) resolver() *repository.Resolver {
	return &repository.Resolver{Secrets: repository.SecretReaderFunc(func(_ context.Context, name string) (map[string][]byte, error) {
		if data, ok := p.secrets[name]; ok {
			return data, nil
		}
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
	})}
}

func (p *place) open(tb testing.TB) *backupstore.Store {
	tb.Helper()
	store, err := backupstore.Open(tb.Context(), p.resolver(), p.location)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	})
	return store
}

// put places an object into the storage, behind the store's back.
func (p *place) put(tb testing.TB, key string, content []byte) {
	tb.Helper()
	file := filepath.Join(p.dir, key)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		tb.Fatal(err)
	}
}

// objects are the keys of everything that the storage holds below the prefix.
func (p *place) objects(tb testing.TB) []string {
	tb.Helper()
	var keys []string
	err := filepath.WalkDir(p.dir, func(file string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		key, err := filepath.Rel(p.dir, file)
		keys = append(keys, key)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return keys
}

func (p *place) content(tb testing.TB, key string) []byte {
	tb.Helper()
	content, err := os.ReadFile(filepath.Join(p.dir, key))
	if err != nil {
		tb.Fatal(err)
	}
	return content
}

// pack is gzip.
func pack(content string) []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write([]byte(content))
	_ = w.Close()
	return packed.Bytes()
}

func unpack(tb testing.TB, packed []byte) string {
	tb.Helper()
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		tb.Fatal(err)
	}
	content, err := io.ReadAll(r)
	if err != nil {
		tb.Fatal(err)
	}
	return string(content)
}

// tarEntry is an entry of an archive, a file unless it says otherwise.
type tarEntry struct {
	name, content string
	kind          byte
}

// archive makes an archive as Velero does: files only, mode 0755.
func archive(entries ...tarEntry) []byte {
	return pack(string(plainArchive(entries...)))
}

func plainArchive(entries ...tarEntry) []byte {
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(e.content))}
		if e.kind != 0 {
			header.Typeflag, header.Linkname, header.Size = e.kind, "/etc/passwd", 0
		}
		if e.kind == tar.TypeXGlobalHeader {
			header = &tar.Header{Typeflag: e.kind, PAXRecords: map[string]string{"comment": "packed by git"}}
		}
		if err := w.WriteHeader(header); err != nil {
			panic(err)
		}
		_, _ = w.Write([]byte(e.content))
	}
	_ = w.Close()
	return plain.Bytes()
}

// wantError fails unless err wraps the sentinel, says each of the texts and holds no secret.
func wantError(tb testing.TB, err, sentinel error, texts ...string) {
	tb.Helper()
	if !errors.Is(err, sentinel) {
		tb.Errorf("got %v, want %v", err, sentinel)
		return
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			tb.Errorf("%v: does not say %q", err, text)
		}
	}
	if strings.Contains(err.Error(), marker) {
		tb.Errorf("%v: holds a secret", err)
	}
}

// keys are the objects in one of the directories at the top.
func (p *place) keys(tb testing.TB, top string) []string {
	tb.Helper()
	if _, err := os.Stat(p.dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var keys []string
	for _, key := range p.objects(tb) {
		if strings.HasPrefix(key, top+"/") {
			keys = append(keys, key)
		}
	}
	return keys
}

func hex(n int) string { return strconv.FormatInt(int64(n), 16) }

func contextWithCause(tb testing.TB) (context.Context, context.CancelCauseFunc) {
	tb.Helper()
	ctx, cancel := context.WithCancelCause(tb.Context())
	tb.Cleanup(func() { cancel(nil) })
	return ctx, cancel
}

// httpClient trusts the place's server, as a person's velero CLI does with --cacert.
func (p *place) httpClient(tb testing.TB) *http.Client {
	tb.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.location.Spec.ObjectStorage.CACert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// isOnly says that err wraps want, or none of them if that is nil, and no other of the package's errors.
func isOnly(err, want error) bool {
	for _, known := range []error{
		backupstore.ErrNotFound, backupstore.ErrNoBucket, backupstore.ErrAccessDenied, backupstore.ErrDamaged, backupstore.ErrTooLarge,
	} {
		if errors.Is(err, known) != errors.Is(want, known) {
			return false
		}
	}
	return err != nil
}

// privateKey is a new RSA key in PEM.
func privateKey(tb testing.TB) string {
	tb.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		tb.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}
