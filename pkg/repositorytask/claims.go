package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/repository/recorded"
)

// use is what a task does with its repositories.
type use int

const (
	useLook   use = iota // counts what is there, and says nothing about damage
	useJudge             // says what is damaged, and what is whole
	useChange            // adds or removes
)

// beside reports whether two tasks may have one repository at the same time. Two that judge may not: which result counts is decided by when it was
// written, so one that has read before the other must not end after it. The same holds for two that look.
func (u use) beside(other use) bool {
	return u == useLook && other == useJudge || u == useJudge && other == useLook
}

// claims are the repositories that the tasks of this process have. A task takes all that it needs or nothing, and does not wait in between: so no two
// wait for each other. It is safe for concurrent use.
type claims struct {
	mu sync.Mutex
	by map[v1alpha1.RepositoryKey][]claim
}

type claim struct {
	task types.UID
	name string
	use  use
}

// wanted is a repository that a task needs, by all names that it is known by.
type wanted struct {
	repository v1alpha1.RepositoryKey
	names      []v1alpha1.RepositoryKey
}

// allMigrations is claimed by each task that migrates: the copy of a Backup is about the repositories of many namespaces.
func allMigrations() v1alpha1.RepositoryKey { return v1alpha1.RepositoryKey{Uploader: "migration"} }

// busyError comes of work on a repository that another task has.
type busyError struct {
	repository v1alpha1.RepositoryKey
	name       v1alpha1.RepositoryKey // by which it is claimed
	by         claim
}

func (e *busyError) Error() string {
	if e.repository == allMigrations() {
		return fmt.Sprintf("task %s migrates, and one task does that at a time", e.by.name)
	}
	return fmt.Sprintf("task %s works on the %s repository of namespace %s in BackupStorageLocation %s",
		e.by.name, e.repository.Uploader, e.repository.VolumeNamespace, e.repository.BackupStorageLocation)
}

// take gives a task repositories besides those that it has. The error is a *busyError: it gets none of them.
func (c *claims) take(by claim, all []wanted) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range all {
		for _, name := range w.names {
			for _, held := range c.by[name] {
				if held.task != by.task && !by.use.beside(held.use) {
					return &busyError{w.repository, name, held}
				}
			}
		}
	}
	if c.by == nil {
		c.by = map[v1alpha1.RepositoryKey][]claim{}
	}
	for _, w := range all {
		for _, name := range w.names {
			if !slices.Contains(c.by[name], by) {
				c.by[name] = append(c.by[name], by)
			}
		}
	}
	return nil
}

// keep takes from a task all repositories but some.
func (c *claims) keep(task types.UID, some []wanted) {
	kept := map[v1alpha1.RepositoryKey]bool{}
	for _, w := range some {
		for _, name := range w.names {
			kept[name] = true
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, held := range c.by {
		if kept[name] {
			continue
		}
		if held = slices.DeleteFunc(held, func(x claim) bool { return x.task == task }); len(held) == 0 {
			delete(c.by, name)
		} else {
			c.by[name] = held
		}
	}
}

// stands reports whether the task that was in the way still is.
func (c *claims) stands(busy *busyError) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(c.by[busy.name], busy.by)
}

// claim takes repositories for the task, until the run ends or they are not pending any more. The error is a *busyError, or the API server's.
func (r *run) claim(ctx context.Context, repositories []v1alpha1.RepositoryKey) error {
	all := slices.Clone(r.claimed)
	repositories = slices.DeleteFunc(slices.Clone(repositories), func(key v1alpha1.RepositoryKey) bool { return r.has([]v1alpha1.RepositoryKey{key}) })
	addresses, err := r.recordedAddresses(ctx, repositories)
	if err != nil {
		return err
	}
	locations := map[string]*velerov1.BackupStorageLocation{}
	for _, key := range repositories {
		location, known := locations[key.BackupStorageLocation]
		if !known && key != allMigrations() {
			if location, err = r.location(ctx, key.BackupStorageLocation); err != nil {
				return err
			}
			locations[key.BackupStorageLocation] = location
		}
		all = append(all, wanted{key, namesOf(ctx, key, location, addresses[key])})
	}
	if err := r.claims.take(claim{r.object.UID, r.object.Name, r.use}, all); err != nil {
		return err
	}
	r.claimed = all
	return nil
}

// recordedAddresses returns the addresses of restic repositories that a Velero server has recorded. There are none where they may not be read: then the work
// in the repositories fails, and says why. The error is that the API server has not answered.
func (r *run) recordedAddresses(ctx context.Context, of []v1alpha1.RepositoryKey) (map[v1alpha1.RepositoryKey]string, error) {
	addresses := map[v1alpha1.RepositoryKey]string{}
	ofRestic := slices.DeleteFunc(slices.Clone(of), func(key v1alpha1.RepositoryKey) bool { return key.Uploader != uploaderRestic })
	if len(ofRestic) == 0 {
		return addresses, nil
	}
	var known velerov1.BackupRepositoryList
	err := r.api.List(ctx, &known, client.InNamespace(r.cfg.Namespace), client.MatchingLabels{velerov1.RepositoryTypeLabel: uploaderRestic})
	if mayBeRepeated(err) || ctx.Err() != nil {
		return nil, fmt.Errorf("look for the BackupRepositories of restic: %w", err)
	}
	for _, key := range ofRestic {
		addresses[key] = recorded.ResticIdentifierOf(known.Items, key.VolumeNamespace, key.BackupStorageLocation)
	}
	return addresses, nil
}

// location reads a BackupStorageLocation; nil: it does not exist.
func (r *run) location(ctx context.Context, name string) (*velerov1.BackupStorageLocation, error) {
	var location velerov1.BackupStorageLocation
	err := r.api.Get(ctx, client.ObjectKey{Namespace: r.cfg.Namespace, Name: name}, &location)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // documented
	}
	if err != nil {
		return nil, fmt.Errorf("get BackupStorageLocation %s: %w", name, err)
	}
	return &location, nil
}

// namesOf returns by what a repository is known: its location, and where that leads to, since two locations may lead to one bucket. Two buckets of one
// name, such as in two regions, count as one. restic's is known by its address, too, if that is known: BackupRepositories of two locations may name one.
// recorded is what one says; empty: none does.
func namesOf(ctx context.Context, key v1alpha1.RepositoryKey, location *velerov1.BackupStorageLocation, recorded string) []v1alpha1.RepositoryKey {
	if location == nil {
		return []v1alpha1.RepositoryKey{key}
	}
	address := recorded
	if address == "" && key.Uploader == uploaderRestic {
		address = repository.ResticAddress(ctx, location, key.VolumeNamespace)
	}
	config := location.Spec.Config
	bucket, prefix := config["bucket"], config["prefix"]
	if storage := location.Spec.ObjectStorage; storage != nil {
		bucket, prefix = storage.Bucket, storage.Prefix
	}
	storage := config["resticRepoPrefix"]
	if storage == "" || key.Uploader != uploaderRestic {
		storage = strings.Join([]string{config["fspath"], strings.Trim(bucket, "/"), strings.Trim(prefix, "/")}, " ")
	}
	there := key
	there.BackupStorageLocation = "storage " + strings.TrimSuffix(storage, "/") // no location has such a name
	names := []v1alpha1.RepositoryKey{key, there}
	if address != "" {
		names = append(names, v1alpha1.RepositoryKey{BackupStorageLocation: "address " + strings.TrimSuffix(address, "/"), Uploader: uploaderRestic})
	}
	return names
}

// has reports whether the task has the repositories.
func (r *run) has(repositories []v1alpha1.RepositoryKey) bool {
	return !slices.ContainsFunc(repositories, func(key v1alpha1.RepositoryKey) bool {
		return !slices.ContainsFunc(r.claimed, func(w wanted) bool { return w.repository == key })
	})
}

// releaseDone lets other tasks have the repositories in which nothing is pending any more.
func (r *run) releaseDone() {
	status := r.status()
	pending := append(pendingVolumes(status.Volumes), pendingRepositories(status.Repositories)...)
	r.claimed = slices.DeleteFunc(r.claimed, func(w wanted) bool { return !slices.Contains(pending, w.repository) })
	r.claims.keep(r.object.UID, r.claimed)
}

// releaseAll lets other tasks have all repositories of the task.
func (r *run) releaseAll() {
	r.claimed = nil
	r.claims.keep(r.object.UID, nil)
}

func pendingVolumes(volumes []v1alpha1.RepositoryTaskVolume) (pending []v1alpha1.RepositoryKey) {
	for i := range volumes {
		if volumes[i].Result == v1alpha1.VolumePending {
			pending = append(pending, repositoryOfVolume(&volumes[i]))
		}
	}
	return pending
}

func pendingRepositories(repositories []v1alpha1.RepositoryTaskRepository) (pending []v1alpha1.RepositoryKey) {
	for i := range repositories {
		if entry := &repositories[i]; entry.Result == v1alpha1.RepositoryPending {
			pending = append(pending, proof.RepositoryIn(entry))
		}
	}
	return pending
}

// What a task needs before it begins.

func (r *run) volumesToRead() []v1alpha1.RepositoryKey { return pendingVolumes(r.entries()) }

func (r *run) repositoriesToDo() []v1alpha1.RepositoryKey {
	repositories, _ := r.repositoryEntries()
	return pendingRepositories(repositories)
}

// migrationNeeds are restic's repositories and kopia's. Who migrates keeps all to the end: what it knows of them must stay true.
func (r *run) migrationNeeds() []v1alpha1.RepositoryKey {
	needs := r.volumesToRead()
	for _, from := range slices.Clone(needs) {
		from.Uploader = uploaderKopia
		needs = append(needs, from)
	}
	if r.object.Spec.DryRun {
		return needs
	}
	return append(needs, allMigrations())
}

// queue writes which task has what this one needs. The process goes on with other tasks.
func (r *run) queue(ctx context.Context, busy *busyError) error {
	r.busy = busy
	before := &r.object.Status
	state, message := v1alpha1.StateQueued, messageOf("it waits for its turn: "+busy.Error())
	if r.wasParked() {
		state = v1alpha1.StateWaiting
	}
	if now := r.status(); now.Reason == v1alpha1.ReasonRepositoryBusy && now.State == string(state) && now.Message == message {
		return nil
	}
	err := r.write(ctx, func(s *v1alpha1.RepositoryTaskStatus) {
		s.Phase = before.Phase // planning may have begun it
		s.State, s.Reason, s.Message = string(state), v1alpha1.ReasonRepositoryBusy, message
		s.BytesPerSecond, s.ETASeconds = 0, nil
		s.HeartbeatTimestamp = new(metav1.NewTime(r.cfg.Now()))
	})
	if err != nil {
		return fmt.Errorf("write which task is in the way: %w", err)
	}
	r.log.Info("The task waits for another one", "other", busy.by.name, "message", message)
	if before.Reason != v1alpha1.ReasonRepositoryBusy {
		r.emit(corev1.EventTypeNormal, v1alpha1.EventQueued, "queue", "%s", message)
	}
	return nil
}

// pause is why this process leaves a task alone for now.
type pause struct {
	until time.Time  // the moment at which the work goes on with a repository that did not open
	busy  *busyError // the task that is in the way; nil: none
}

// pauseOf returns for how long a task is left alone; 0: its work goes on.
func (c *Controller) pauseOf(task types.UID) time.Duration {
	c.shared.Lock()
	defer c.shared.Unlock()
	known, paused := c.paused[task]
	if !paused {
		return 0
	}
	if known.busy != nil && c.claims.stands(known.busy) {
		return c.cfg.BusyDelay
	}
	if left := time.Until(known.until); left > 0 {
		return left
	}
	delete(c.paused, task)
	return 0
}

// leaveAlone remembers what a task waits for that has not ended, and returns for how long it is left alone; 0: it waits for nothing.
func (c *Controller) leaveAlone(r *run) time.Duration {
	var p pause
	switch {
	case r.busy != nil:
		p.busy = r.busy
	case r.parked != nil:
		p.until = r.parked.until
	default:
		return 0
	}
	c.shared.Lock()
	defer c.shared.Unlock()
	if c.paused == nil {
		c.paused = map[types.UID]pause{}
	}
	c.paused[r.object.UID] = p
	if p.busy != nil {
		return c.cfg.BusyDelay
	}
	return max(time.Until(p.until), 1)
}

// asBusy returns the *busyError that an error is; nil: it is another one.
func asBusy(err error) *busyError {
	busy, _ := errors.AsType[*busyError](err)
	return busy
}
