package nodeagent

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// manyVolumes are more than a node with two slots gets through while a store is away, were each of them tried.
const manyVolumes = 12

// backups makes a PodVolumeBackup of each of n volumes of a pod.
func (c *cluster) backups(pod, location, data string, n int) []*velerov1.PodVolumeBackup {
	c.t.Helper()
	volumes := make([]string, n)
	for i := range volumes {
		volumes[i] = fmt.Sprintf("data-%d", i)
	}
	source := c.pod(pod, volumes...)
	made := make([]*velerov1.PodVolumeBackup, n)
	for i, volume := range volumes {
		write(c.t, filepath.Join(c.dir(source, volume), "file"), pod+volume)
		made[i] = c.newBackup(source, volume)
		made[i].Spec.UploaderType, made[i].Spec.BackupStorageLocation = data, location
		c.Create(made[i])
	}
	return made
}

// complete waits until all are Completed, at the first attempt.
func (c *cluster) complete(backups ...*velerov1.PodVolumeBackup) {
	c.t.Helper()
	for _, pvb := range backups {
		if end := c.end(pvb); end.Phase != podvolume.PhaseCompleted || annotated(c.t, end).Attempt != 1 {
			c.t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
		}
	}
}

// waits reports whether a volume waits for a repository of a location.
func waits(v podvolume.PodVolume, location string) bool {
	p := v.LastSnapshot()
	return p.State == progress.StateWaiting && p.Reason == v1alpha1.ReasonRepositoryUnavailable && strings.Contains(p.Message, "in location "+location) && p.Uncounted
}

// The volumes of a store that is away leave the slots to those of another one, and go on by themselves when it is back.
func TestStoreIsAway(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	for _, data := range []string{"restic", "kopia"} {
		t.Run(data, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			server := s3.Start(t)
			c.Create(c.BucketLocation("away", server, server.Bucket(t)))
			agent, _ := c.startAgent(nil, func(cfg *Config) {
				cfg.Uploaders = map[string]uploader.Uploader{"restic": newRestic(t), "kopia": newKopia(t)}
				cfg.Concurrency, cfg.RetryDelay, cfg.LockWait, cfg.LockDelay = 2, 50*time.Millisecond, time.Hour, 200*time.Millisecond
			})
			first := c.backups("first", "away", data, 1)[0]
			c.complete(first)

			server.Stop()
			away := c.backups("away", "away", data, manyVolumes)
			target := c.pod("target", "data")
			c.setInitContainer(target, running)
			pvr := c.newRestore(target, "data", c.end(first).Object.(*velerov1.PodVolumeBackup).Status.SnapshotID)
			pvr.Spec.UploaderType, pvr.Spec.BackupStorageLocation = data, "away"
			c.Create(pvr)
			c.complete(c.backups("healthy", "default", data, 5)...)
			for _, pvb := range away {
				c.history.until(t, pvb, "waiting for its repository", func(v podvolume.PodVolume) bool { return waits(v, "away") })
			}
			c.history.until(t, pvr, "waiting for its repository", func(v podvolume.PodVolume) bool { return waits(v, "away") })
			if note := c.event(away[manyVolumes-1], v1alpha1.EventWaiting); !strings.Contains(note, "connection refused") {
				t.Errorf("Event %q", note)
			}
			if n := agent.UnavailableRepositories(); n != 1 {
				t.Errorf("%d repositories are waited for", n)
			}
			canceled := away[0]
			c.Patch(canceled.DeepCopy(), `{"spec":{"cancel":true}}`)
			if end := c.end(canceled); end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, "was canceled") {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}

			server.Run(t)
			c.complete(away[1:]...)
			if end := c.end(pvr); end.Phase != podvolume.PhaseCompleted || annotated(t, end).Attempt != 1 {
				t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
			}
			if n := agent.UnavailableRepositories(); n != 0 {
				t.Errorf("%d repositories are waited for", n)
			}
		})
	}
}

// A wrong password fails a few volumes, and the others wait until it is corrected.
func TestWrongPasswordIsCorrected(t *testing.T) {
	t.Parallel()
	for _, data := range []string{"restic", "kopia"} {
		t.Run(data, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, controlplane.LatestVelero)
			c.Create(c.DirectoryLocation("other", t.TempDir()))
			c.startAgent(nil, func(cfg *Config) {
				cfg.Uploaders = map[string]uploader.Uploader{"restic": c.newRestic(t), "kopia": c.newKopia(t)}
				cfg.Concurrency, cfg.RetryDelay, cfg.LockWait, cfg.LockDelay = 2, 50*time.Millisecond, time.Hour, 200*time.Millisecond
			})
			c.complete(c.backups("first", "default", data, 1)...)

			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "velero-repo-credentials"}}
			c.Patch(secret.DeepCopy(), `{"stringData":{"repository-password":"of another cluster"}}`)
			locked := c.backups("locked", "default", data, manyVolumes)
			c.complete(c.backups("healthy", "other", data, 2)...)
			var waiting []*velerov1.PodVolumeBackup
			for _, pvb := range locked {
				versions := c.history.until(t, pvb, "failed or waiting", func(v podvolume.PodVolume) bool { return v.Terminal() || waits(v, "default") })
				if v := versions[len(versions)-1]; !v.Terminal() {
					waiting = append(waiting, pvb)
				} else if !strings.Contains(v.Message, "wrong repository password") {
					t.Errorf("ended as %s", describe(versions))
				}
			}
			if failed := manyVolumes - len(waiting); failed < 3 || failed > 4 {
				t.Errorf("%d volumes failed", failed)
			}
			c.Patch(secret, `{"stringData":{"repository-password":"`+resticrepo.Password+`"}}`)
			c.complete(waiting...)
		})
	}
}

// Whoever waits for a repository ends before its server gives up, and says what it has waited for.
func TestDeadlineWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	c := newCluster(t, controlplane.LatestVelero)
	server := s3.Start(t)
	c.Create(c.BucketLocation("away", server, server.Bucket(t)))
	server.Stop()
	c.startBackup(time.Now(), "10s")
	c.startAgent(newRestic(t), func(cfg *Config) { cfg.BackupTimeout = 4 * time.Hour })
	ends := make([]podvolume.PodVolume, 0, 5)
	for _, pvb := range c.backups("away", "away", "restic", 5) {
		ends = append(ends, c.end(pvb))
	}
	said := slices.ContainsFunc(ends, func(end podvolume.PodVolume) bool {
		return strings.Contains(end.Message, "in location away has not opened since") && strings.Contains(end.Message, "connection refused")
	})
	for _, end := range ends {
		if end.Phase != podvolume.PhaseFailed || !strings.Contains(end.Message, "Backup b1 (10s after its start)") {
			t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
		}
	}
	if !said {
		t.Errorf("no message says what it has waited for: %s", describe(ends))
	}
}
