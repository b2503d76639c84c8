package repository_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/test/parts"
)

// signedBy is an S3 server with an empty bucket that notes who signed its first two requests.
type signedBy struct {
	mu      sync.Mutex
	signers []string
	// each is called after a request was noted, with the number of requests so far; enough after the second.
	each   func(n int)
	enough context.CancelFunc
}

var signature = regexp.MustCompile(`Credential=([^/]*)/\d+/([^/]*)/`)

func (s *signedBy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	signer := "nobody"
	if m := signature.FindStringSubmatch(r.Header.Get("Authorization")); m != nil {
		signer = fmt.Sprintf("%s %s %s", m[1], r.Header.Get("X-Amz-Security-Token"), m[2])
	}
	if len(s.signers) < 2 {
		s.signers = append(s.signers, signer)
		s.each(len(s.signers))
	}
	if len(s.signers) == 2 {
		s.enough()
	}
	// The config seems to be there, so that each version of restic comes back for it.
	if r.Method == http.MethodHead && strings.HasSuffix(r.URL.Path, "/config") {
		w.Header().Set("Content-Length", "155")
		w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
		return
	}
	w.WriteHeader(http.StatusNotFound)
}

// signersOf runs restic of the version on the repository that l leads to, and returns who signed its first two requests.
// each is called after each of them.
func (c *cluster) signersOf(t *testing.T, version string, l *velerov1.BackupStorageLocation, each func(n int)) []string {
	t.Helper()
	// restic goes on asking for minutes, so it is ended as soon as it has shown what it does.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	s3 := &signedBy{each: each, enough: cancel}
	server := httptest.NewServer(s3)
	defer server.Close()

	l.Spec.Config["s3Url"], l.Spec.Config["region"] = server.URL+"/", "minio"
	resolver := c.resolver()
	resolver.ReadFile = nil
	repo, err := resolver.Resolve(t.Context(), l, shop)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, parts.Restic(t, version), "snapshots", "--no-cache", "--no-lock", "--repo", repo.URL)
	cmd.Env = []string{"RESTIC_PASSWORD=x"}
	for name, value := range repo.Env {
		cmd.Env = append(cmd.Env, name+"="+value.Reveal())
	}
	out, err := cmd.CombinedOutput()
	s3.mu.Lock()
	defer s3.mu.Unlock()
	if len(s3.signers) < 2 {
		t.Fatalf("restic asked S3 %d times, want 2: %v\n%s", len(s3.signers), err, out)
	}
	return s3.signers
}

func TestResticUsesAWSKeys(t *testing.T) {
	t.Parallel()
	for _, version := range parts.ResticVersions(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			l := c.withSecret(location("aws", "profile", "other"), awsKeys)
			want := []string{"OTHER HuSh-token minio", "OTHER HuSh-token minio"}
			if diff := cmp.Diff(want, c.signersOf(t, version, l, func(int) {})); diff != "" {
				t.Errorf("signers of requests (-want +got):\n%s", diff)
			}
		})
	}
}

// Temporary keys that are renewed in the mounted file while restic runs are used at once, from 0.16 on.
func TestResticUsesRenewedAWSKeys(t *testing.T) {
	t.Parallel()
	for _, version := range parts.ResticVersions(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "cloud")
			renew := func(n int) {
				content := fmt.Sprintf("[default]\naws_access_key_id=ID%d\naws_secret_access_key=HuSh\naws_session_token=T%d\n", n, n)
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Error(err)
				}
			}
			renew(0)
			want := []string{"ID0 T0 minio", "ID1 T1 minio"}
			if strings.HasPrefix(version, "0.14.") {
				want[1] = want[0]
			}
			c := newCluster()
			c.env["AWS_SHARED_CREDENTIALS_FILE"] = file
			if diff := cmp.Diff(want, c.signersOf(t, version, location("aws"), renew)); diff != "" {
				t.Errorf("signers of requests (-want +got):\n%s", diff)
			}
		})
	}
}
