package restorecontroller

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
)

// onLine calls do with each line of a log that has the text, before the program that logs goes on.
type onLine struct {
	text string
	do   func(line string)
}

// Write implements io.Writer.
func (l onLine) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(l.text)) {
		l.do(string(b))
	}
	return len(b), nil
}

func (l onLine) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

const storeIsAway = "retrying before the restore begins"

// TestRestoreBeginsWhenTheStoreIsBack has a store that cannot say at first whether the Restore's name is free. It is back
// after two attempts, whatever time they take.
func TestRestoreBeginsWhenTheStoreIsBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	restores := filepath.Join(c.dir, "restores")
	if err := os.WriteFile(restores, nil, 0o600); err != nil { // a file where a directory should be
		t.Fatal(err)
	}
	tries := 0
	restorable(c, &script{}, func(cfg *Config) {
		cfg.Logger = onLine{storeIsAway, func(string) {
			if tries++; tries == 2 {
				if err := os.Remove(restores); err != nil {
					t.Error(err)
				}
			}
		}}.logger()
	})
	r := c.newRestore("r1", nil)
	c.Create(r)
	if c.ended(r); r.Status.Phase != velerov1.RestorePhaseCompleted || tries != 2 {
		t.Errorf("after %d tries %+v", tries, r.Status)
	}
}

// TestLostAnswerToTheBegin loses the answer to the write that begins a Restore, which has landed: it goes on.
func TestLostAnswerToTheBegin(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	writes := &atomic.Int32{}
	c.Intercept.Patch = func(ctx context.Context, api client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
		err := api.Patch(ctx, o, patch, opts...)
		if r, ok := o.(*velerov1.Restore); err == nil && ok && r.Status.Phase == velerov1.RestorePhaseInProgress && writes.Add(1) == 1 {
			return apierrors.NewServiceUnavailable("the answer is lost")
		}
		return err
	}
	restorable(c, &script{}, nil)
	if r := c.ended(c.created("r1")); r.Status.Phase != velerov1.RestorePhaseCompleted || writes.Load() < 2 {
		t.Errorf("%+v after %d writes", r.Status, writes.Load())
	}
}

// TestPatienceWithTheStoreEnds asks a store that does not come back, in a bubble of time: for 15 seconds.
func TestPatienceWithTheStoreEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "restores"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	location := &velerov1.BackupStorageLocation{Spec: velerov1.BackupStorageLocationSpec{
		Provider: "velero.io/fs", Config: map[string]string{"fspath": filepath.Dir(dir)},
		StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "b", Prefix: filepath.Base(dir)}},
	}}
	synctest.Test(t, func(t *testing.T) {
		var after []time.Duration
		begun := time.Now()
		c := &Controller{resolver: &repository.Resolver{}}
		c.cfg.Logger = onLine{storeIsAway, func(string) { after = append(after, time.Since(begun)) }}.logger()
		r := &velerov1.Restore{}
		r.Name = "r1"
		problem := c.checkUnusedWithRetry(t.Context(), r, location)
		if problem == nil || errors.Is(problem, errNameTaken) || !strings.Contains(problem.Error(), "whether the restore's name is free") {
			t.Errorf("got %v", problem)
		}
		if waited := time.Since(begun); waited != 15*time.Second || len(after) != 4 {
			t.Errorf("gave up after %s, and tried again after %v", waited, after)
		}
	})
}
