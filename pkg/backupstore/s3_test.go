package backupstore_test

import (
	"crypto/md5"
	"encoding/base64"
	"encoding/pem"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

func TestS3Refusals(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	server := s3.Start(t)
	other := s3.Start(t)
	for name, test := range map[string]struct {
		change func(*place)
		err    error
		says   string
	}{
		"unknown access key": {
			func(p *place) {
				p.setCredential("[default]\naws_access_key_id = nobody\naws_secret_access_key = " + marker)
			}, backupstore.ErrAccessDenied, "credential",
		},
		"wrong secret key": {
			func(p *place) {
				p.setCredential("[default]\naws_access_key_id = " + server.AccessKey + "\naws_secret_access_key = " + marker)
			}, backupstore.ErrAccessDenied, "credential",
		},
		"unknown CA": {
			func(p *place) { p.location.Spec.ObjectStorage.CACert = nil }, nil, "caCert",
		},
		"another CA": {
			func(p *place) { p.location.Spec.ObjectStorage.CACert = other.CACert }, nil, "caCert",
		},
		"nobody listens": {
			func(p *place) { p.location.Spec.Config["s3Url"] = "https://127.0.0.1:1" }, nil, "refused",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := onServer(t, server)
			p.put(t, "backups/nightly/velero-backup.json", []byte(goldens["1.18"].metadata))
			test.change(p)
			store := p.open(t)
			names, err := store.Backups(t.Context())
			if err == nil {
				t.Fatalf("got %v, want an error", names)
			}
			if test.err != nil {
				wantError(t, err, test.err, test.says)
			}
			if !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), marker) {
				t.Errorf("%v: want it to say %q, and no secret", err, test.says)
			}
			_, err = backup(t, p).Metadata(t.Context())
			if err == nil || test.err != nil && !isOnly(err, test.err) {
				t.Errorf("reading: got %v, want %v", err, test.err)
			}
			if err := restore(t, p).PutLog(t.Context(), strings.NewReader("x")); err == nil || test.err != nil && !isOnly(err, test.err) {
				t.Errorf("writing: got %v, want %v", err, test.err)
			}
		})
	}
	t.Run("insecureSkipTLSVerify", func(t *testing.T) {
		t.Parallel()
		p := onServer(t, server)
		p.location.Spec.ObjectStorage.CACert = nil
		p.location.Spec.Config["insecureSkipTLSVerify"] = "true"
		if err := p.open(t).Validate(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A mounted file of temporary keys is read again, and need not be there before it is needed.
func TestS3MountedTemporaryKeys(t *testing.T) {
	t.Parallel()
	p, requests := onRecorder(t)
	file := filepath.Join(t.TempDir(), "credentials")
	p.location.Spec.Credential = nil
	p.location.Spec.Config["credentialsFile"] = file
	p.location.Spec.Config["profile"] = "backups"
	keys := "[backups]\naws_access_key_id = temporary-id\naws_secret_access_key = " + marker + "\naws_session_token = the-token\n"
	if err := os.WriteFile(file, []byte(keys), 0o600); err != nil {
		t.Fatal(err)
	}
	putRestore(t, restore(t, p))
	for _, r := range requests() {
		if !strings.Contains(r.Header.Get("Authorization"), "Credential=temporary-id/") || r.Header.Get("X-Amz-Security-Token") != "the-token" {
			t.Errorf("%s: signed as %q, token %q", r.URL, r.Header.Get("Authorization"), r.Header.Get("X-Amz-Security-Token"))
		}
	}
}

// TestS3Requests looks at what is sent, for settings whose effect no server here shows.
func TestS3Requests(t *testing.T) {
	t.Parallel()
	const key = marker + "-28-bytes-to-the-end-of-key!"
	sum := md5.Sum([]byte(key))
	for name, test := range map[string]struct {
		config map[string]string
		// The headers of the requests that write; an empty value: there must be none.
		headers map[string]string
	}{
		"defaults": {
			nil, map[string]string{
				"X-Amz-Sdk-Checksum-Algorithm": "CRC32", "X-Amz-Server-Side-Encryption": "", "X-Amz-Tagging": "",
				"X-Amz-Server-Side-Encryption-Customer-Key": "",
			},
		},
		"no checksum": {
			map[string]string{"checksumAlgorithm": ""},
			map[string]string{"X-Amz-Sdk-Checksum-Algorithm": "", "X-Amz-Trailer": "", "Content-Encoding": "", "X-Amz-Checksum-Crc32": ""},
		},
		"another checksum": {
			map[string]string{"checksumAlgorithm": "SHA256"}, map[string]string{"X-Amz-Sdk-Checksum-Algorithm": "SHA256"},
		},
		"encryption": {
			map[string]string{"serverSideEncryption": "AES256", "tagging": "team=shop"},
			map[string]string{"X-Amz-Server-Side-Encryption": "AES256", "X-Amz-Tagging": "team=shop"},
		},
		"KMS": {
			map[string]string{"kmsKeyId": "alias/backups"},
			map[string]string{"X-Amz-Server-Side-Encryption": "aws:kms", "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": "alias/backups"},
		},
		"customer key": {
			map[string]string{"customerKeyEncryptionSecret": "sse/key", "serverSideEncryption": "AES256"},
			map[string]string{
				"X-Amz-Server-Side-Encryption": "", "X-Amz-Server-Side-Encryption-Customer-Algorithm": "AES256",
				"X-Amz-Server-Side-Encryption-Customer-Key":     base64.StdEncoding.EncodeToString([]byte(key)),
				"X-Amz-Server-Side-Encryption-Customer-Key-Md5": base64.StdEncoding.EncodeToString(sum[:]),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, requests := onRecorder(t)
			p.secrets["sse"] = map[string][]byte{"key": []byte(key)}
			maps.Copy(p.location.Spec.Config, test.config)
			r := restore(t, p)
			putRestore(t, r)
			if err := r.Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
			puts := 0
			for _, request := range requests() {
				if request.Method == http.MethodPut {
					puts++
					for header, want := range test.headers {
						if got := request.Header.Get(header); got != want {
							t.Errorf("%s has %s %q, want %q", request.URL, header, got, want)
						}
					}
				}
				customerKey := "X-Amz-Server-Side-Encryption-Customer-Key"
				if request.Method == http.MethodHead && request.Header.Get(customerKey) != test.headers[customerKey] {
					t.Errorf("HEAD %s has %s %q", request.URL, customerKey, request.Header.Get(customerKey))
				}
			}
			if puts != 5 {
				t.Errorf("%d objects were written, want 5", puts)
			}
			_, err := p.open(t).DownloadURL(t.Context(), velerov1.DownloadTarget{Kind: velerov1.DownloadTargetKindRestoreLog, Name: "r"}, time.Minute)
			if test.config["customerKeyEncryptionSecret"] != "" {
				wantError(t, err, backupstore.ErrNoURL)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestS3URLs(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config map[string]string
		prefix string // of the URL
	}{
		"Amazon": {
			map[string]string{"region": "eu-central-1"}, "https://bucket.s3.eu-central-1.amazonaws.com/cluster-a/restores/r/restore-r-logs.gz?",
		},
		"Amazon, with paths": {
			map[string]string{"region": "cn-north-1", "s3ForcePathStyle": "true"},
			"https://s3.cn-north-1.amazonaws.com.cn/bucket/cluster-a/restores/r/restore-r-logs.gz?",
		},
		"public address": {
			map[string]string{"s3Url": "http://minio:9000", "publicUrl": "https://minio.example.com/", "s3ForcePathStyle": "true"},
			"https://minio.example.com/bucket/cluster-a/restores/r/restore-r-logs.gz?",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace("aws", test.config)
			p.setCredential("[default]\naws_access_key_id = id\naws_secret_access_key = " + marker)
			target := velerov1.DownloadTarget{Kind: velerov1.DownloadTargetKindRestoreLog, Name: "r"}
			got, err := p.open(t).DownloadURL(t.Context(), target, 10*time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(got, test.prefix) || strings.Contains(got, marker) {
				t.Errorf("got %s, want %s...", got, test.prefix)
			}
			if u, err := url.Parse(got); err != nil || u.Query().Get("X-Amz-Expires") != "600" {
				t.Errorf("%s: want 600 seconds", got)
			}
		})
	}
}

func TestS3Misconfigured(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]map[string]string{
		"s3Url":             {"s3Url": "minio:9000"},
		"publicUrl":         {"region": "r", "publicUrl": "minio.example.com"},
		"s3ForcePathStyle":  {"region": "r", "s3ForcePathStyle": "yes please"},
		"checksumAlgorithm": {"region": "r", "checksumAlgorithm": "ROT13"},
		"kmsKeyId":          {"region": "r", "kmsKeyId": "x", "customerKeyEncryptionSecret": "sse/key"},
		"region":            {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace("aws", config)
			p.secrets["sse"] = map[string][]byte{"key": []byte(strings.Repeat("k", 32))}
			p.setCredential("[default]\naws_access_key_id = id\naws_secret_access_key = " + marker)
			_, err := backupstore.Open(t.Context(), p.resolver(), p.location)
			wantError(t, err, repository.ErrMisconfigured, name)
		})
	}
}

// onRecorder is a place in a bucket of a fake S3 server, which keeps objects in a map, and the requests.
func onRecorder(t *testing.T) (p *place, requests func() []*http.Request) {
	t.Helper()
	var mu sync.Mutex
	var seen []*http.Request
	objects := map[string]bool{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		seen = append(seen, r.Clone(r.Context()))
		switch {
		case r.Method == http.MethodPut:
			objects[strings.TrimPrefix(r.URL.Path, "/bucket/")] = true
		case r.Method == http.MethodGet && r.URL.Query().Has("list-type"):
			_, _ = io.WriteString(w, listing(objects))
		case r.Method == http.MethodDelete:
			delete(objects, strings.TrimPrefix(r.URL.Path, "/bucket/"))
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	t.Cleanup(server.Close)
	p = newPlace("aws", map[string]string{"s3Url": server.URL, "region": "us-east-1", "s3ForcePathStyle": "true"})
	p.location.Spec.ObjectStorage.CACert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	p.setCredential("[default]\naws_access_key_id = id\naws_secret_access_key = " + marker)
	return p, func() []*http.Request {
		mu.Lock()
		defer mu.Unlock()
		if len(seen) == 0 {
			t.Error("nothing was sent")
		}
		return seen
	}
}

func listing(objects map[string]bool) string {
	var b strings.Builder
	b.WriteString("<ListBucketResult>")
	for key := range objects {
		b.WriteString("<Contents><Key>" + key + "</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><Size>1</Size></Contents>")
	}
	b.WriteString("</ListBucketResult>")
	return b.String()
}
