package pluginendpoint

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
)

const (
	maxOperations = 1000             // that are under way; each has a goroutine
	flushTimeout  = 10 * time.Second // for what is to be written when an operation is left
)

// operations are those of which something was heard not long ago. It is safe for concurrent use.
type operations struct {
	cfg Config

	mu     sync.Mutex
	serves bool
	all    map[string]*operation // by resource and name
}

// operation is one that is reported here.
type operation struct {
	*volumeplugin.Operation

	recorder *volumeplugin.Recorder // of it alone, so that it can be left
	heard    time.Time              // guarded by operations.mu
	ending   atomic.Bool            // its end was told

	mu   sync.Mutex
	done int64 // what was told last
	most int64 // that was told or read from the object
}

func newOperations(cfg Config) *operations {
	return &operations{cfg: cfg, all: map[string]*operation{}}
}

func keyOf(resource, name string) string { return resource + "/" + name }

func resourceOf(object client.Object) string {
	if _, isRestore := object.(*v1alpha1.VolumePluginRestore); isRestore {
		return restores.resource
	}
	return backups.resource
}

// run leaves operations of which nothing is heard any more, until ctx ends, and then all.
func (o *operations) run(ctx context.Context) {
	o.mu.Lock()
	o.serves = true
	o.mu.Unlock()
	tick := time.NewTicker(max(o.cfg.IdleAfter/5, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			leave(ctx, o.take(func(op *operation) bool { return op.isIdle(o.cfg.IdleAfter) }))
		case <-ctx.Done():
			o.mu.Lock()
			o.serves = false
			o.mu.Unlock()
			leave(context.WithoutCancel(ctx), o.take(func(*operation) bool { return true }))
			return
		}
	}
}

// isIdle says whether an operation need not be kept. One whose end was told is kept until that is written.
func (op *operation) isIdle(after time.Duration) bool {
	select {
	case <-op.Ended():
		return true
	default:
		return !op.ending.Load() && time.Since(op.heard) > after
	}
}

// take removes the operations for which is says so.
func (o *operations) take(is func(*operation) bool) []*operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	var taken []*operation
	for key, op := range o.all {
		if is(op) {
			taken = append(taken, op)
			delete(o.all, key)
		}
	}
	return taken
}

// leave writes the last numbers of operations and ends their goroutines, all at the same time.
func leave(ctx context.Context, all []*operation) {
	ctx, cancel := context.WithTimeout(ctx, flushTimeout)
	defer cancel()
	var group sync.WaitGroup
	for _, op := range all {
		group.Go(func() { op.recorder.Close(ctx) })
	}
	group.Wait()
}

// find returns an operation of which something was heard not long ago, nil if there is none.
func (o *operations) find(k kind, name string) *operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.alive(keyOf(k.resource, name))
}

func (o *operations) alive(key string) *operation {
	op := o.all[key]
	if op == nil || op.isIdle(o.cfg.IdleAfter) {
		return nil
	}
	op.heard = time.Now()
	return op
}

// goOn returns the operation of an object that has not ended.
func (o *operations) goOn(ctx context.Context, object client.Object) (*operation, error) {
	key := keyOf(resourceOf(object), object.GetName())
	o.mu.Lock()
	defer o.mu.Unlock()
	if op := o.alive(key); op != nil {
		return op, nil
	}
	switch {
	case !o.serves:
		return nil, problemf(http.StatusServiceUnavailable, "the endpoint starts or stops: try again")
	case len(o.all) >= maxOperations:
		return nil, problemf(http.StatusServiceUnavailable, "%d operations are under way: try again later", maxOperations)
	}
	recorder, done := newRecorder(ctx, o.cfg, pluginOf(object)), statusOf(object).Progress.BytesDone
	op := &operation{Operation: recorder.GoOn(object), recorder: recorder, heard: time.Now(), done: done, most: done}
	o.all[key] = op
	return op, nil
}

// learn takes over what an object says.
func (o *operations) learn(object client.Object) {
	o.mu.Lock()
	op := o.all[keyOf(resourceOf(object), object.GetName())]
	o.mu.Unlock()
	if op != nil {
		op.learn(statusOf(object).Progress)
	}
}

// learn takes over more bytes than this process was told of: another one was.
func (op *operation) learn(p v1alpha1.VolumeOperationProgress) {
	op.mu.Lock()
	defer op.mu.Unlock()
	if p.BytesDone > op.most {
		op.done, op.most = p.BytesDone, p.BytesDone
		op.Update(p.BytesDone, p.TotalBytes)
	}
}

// update passes on numbers that were reported.
func (op *operation) update(done, total *int64) {
	op.mu.Lock()
	defer op.mu.Unlock()
	if done != nil {
		op.done, op.most = *done, max(op.most, *done)
	}
	if total == nil {
		total = new(int64)
	}
	op.Update(op.done, *total)
}

// tell passes on what was reported, and says whether it has waited for it to be written.
func (op *operation) tell(said report) (written bool) {
	if said.BytesDone != nil || said.TotalBytes != nil {
		op.update(said.BytesDone, said.TotalBytes)
	}
	if id := said.id(); id != "" {
		op.SetID(id)
		written = true
	}
	op.ending.CompareAndSwap(false, said.Phase.Terminal())
	switch said.Phase {
	case v1alpha1.PhaseCompleted:
		op.Complete()
	case v1alpha1.PhaseFailed:
		op.Fail(said.Message)
	default:
		return written
	}
	return true
}
