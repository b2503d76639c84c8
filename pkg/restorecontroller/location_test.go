package restorecontroller

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestLocationIsAvailable(t *testing.T) {
	t.Parallel()
	for name, place := range map[string]func(*testing.T) *cluster{"directory": newCluster, "S3": newClusterOnS3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := place(t)
			c.start(nil)
			testenv.EventuallyGet(c.Env, c.location, "available", func(l *velerov1.BackupStorageLocation, _ error) bool {
				return l.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable && l.Status.LastValidationTime != nil && l.Status.Message == ""
			})
			c.put("photos/cat.jpg", nil)
			testenv.EventuallyGet(c.Env, c.location, "a directory that is no backup store's", func(l *velerov1.BackupStorageLocation, _ error) bool {
				return l.Status.Phase == velerov1.BackupStorageLocationPhaseUnavailable && strings.Contains(l.Status.Message, "photos")
			})
			if err := os.RemoveAll(filepath.Join(c.dir, "photos")); err != nil {
				t.Fatal(err)
			}
			testenv.EventuallyGet(c.Env, c.location, "available again", func(l *velerov1.BackupStorageLocation, _ error) bool {
				return l.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable && l.Status.Message == ""
			})
		})
	}
}

// TestLocationIsValidatedWhenItChanges has a period of a day: only the change is a reason.
func TestLocationIsValidatedWhenItChanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.start(func(cfg *Config) { cfg.ValidationFrequency = 24 * time.Hour })
	testenv.EventuallyGet(c.Env, c.location, "available", func(l *velerov1.BackupStorageLocation, _ error) bool {
		return l.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable
	})
	c.Patch(c.location, `{"spec":{"config":{"fspath":"/no/such/directory"}}}`)
	testenv.EventuallyGet(c.Env, c.location, "unavailable", func(l *velerov1.BackupStorageLocation, _ error) bool {
		return l.Status.Phase == velerov1.BackupStorageLocationPhaseUnavailable && strings.Contains(l.Status.Message, "/no/such/directory")
	})
}

func TestYoungestDefaultStays(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.Patch(c.location, `{"spec":{"default":true}}`)
	second := &velerov1.BackupStorageLocation{ObjectMeta: c.Meta("another"), Spec: *c.location.Spec.DeepCopy()}
	c.Eventually("a second between the two", func() bool { return time.Since(c.location.CreationTimestamp.Time) > 2*time.Second })
	c.Create(second)
	c.start(nil)
	testenv.EventuallyGet(c.Env, c.location, "not the default", func(l *velerov1.BackupStorageLocation, _ error) bool { return !l.Spec.Default })
	testenv.EventuallyGet(c.Env, second, "the default", func(l *velerov1.BackupStorageLocation, _ error) bool {
		return l.Spec.Default && l.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable
	})
}
