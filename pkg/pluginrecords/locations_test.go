package pluginrecords

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// TestDeadLocationsHoldUpNoOther has ten backups in five locations whose stores do not answer, and then one in another.
func TestDeadLocationsHoldUpNoOther(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var hanging atomic.Int32
	done := make(chan struct{})
	dead := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		hanging.Add(1)
		select {
		case <-done:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(done); dead.Close() })
	s.Create(&corev1.Secret{
		ObjectMeta: s.Meta("keys"), StringData: map[string]string{"cloud": "[default]\naws_access_key_id=a\naws_secret_access_key=b\n"},
	})
	for i := range 10 {
		name := fmt.Sprintf("dead-%d", i%5)
		if i < 5 {
			location := &velerov1.BackupStorageLocation{ObjectMeta: s.Meta(name)}
			location.Spec.Provider = "aws"
			location.Spec.Config = map[string]string{"region": "us-east-1", "s3Url": dead.URL, "s3ForcePathStyle": "true"}
			location.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: name}
			location.Spec.Credential = &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}, Key: "cloud"}
			s.Create(location)
		}
		b := s.backupIn(name, fmt.Sprintf("backup-%d", i))
		s.record(b, "pv-1", nil)
		s.store(b)
	}
	s.start(nil)
	s.Eventually("four stores hang", func() bool { return hanging.Load() >= 4 })
	b := s.backup("nightly")
	s.record(b, "pv-1", nil)
	s.store(b)
	s.untilKept("nightly", phases{"pv-1": v1alpha1.PhaseInProgress})
}

// TestOneBackupHoldsUpNoOther has a backup in the way of others of its location that cannot be kept.
func TestOneBackupHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(s *site, metadata string) error{
		"not stored": func(_ *site, metadata string) error { return os.Remove(metadata) },
		"damaged":    func(_ *site, metadata string) error { return os.WriteFile(metadata, []byte("no JSON"), 0o600) },
		"unreadable": func(_ *site, metadata string) error {
			if err := os.Remove(metadata); err != nil {
				return err
			}
			return os.Mkdir(metadata, 0o700) // reading gives an error that could be that of the whole store
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			for i := range 4 {
				b := s.backup(fmt.Sprintf("backup-%d", i))
				s.record(b, "pv-1", nil)
				s.store(b)
			}
			if err := spoil(s, filepath.Join(s.dir, "backups", "backup-0", "velero-backup.json")); err != nil {
				t.Fatal(err)
			}
			s.start(nil)
			for i := range 3 {
				s.untilKept(fmt.Sprintf("backup-%d", i+1), phases{"pv-1": v1alpha1.PhaseInProgress})
			}
		})
	}
}
