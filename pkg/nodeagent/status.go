package nodeagent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

const (
	// veleroFinalizer is left on objects that Velero's own agent has touched since 1.17; whoever ends such an object has to
	// take it off (contracts/velero-node-agent.md 5.4).
	veleroFinalizer = "velero.io/pod-volume-finalizer"

	writeTimeout  = 30 * time.Second
	shutdownGrace = 10 * time.Second // for the terminal writes of operations that ended just before the agent does
)

// patch is a JSON merge patch of the fields that the agent owns. Neither CRD has a status subresource, in any version, so
// that one patch can change annotations and status together.
type patch struct {
	Metadata patchMetadata  `json:"metadata"`
	Status   map[string]any `json:"status,omitempty"`
}

type patchMetadata struct {
	UID             types.UID         `json:"uid,omitempty"` // an object of the same name that was made since is refused
	Annotations     map[string]string `json:"annotations,omitempty"`
	Finalizers      *[]string         `json:"finalizers,omitempty"`      // nil: left alone
	ResourceVersion string            `json:"resourceVersion,omitempty"` // only where two agents may write
}

// newPatch tells s on the object: as the annotation and, once the total is known, as status.progress, which is what
// Velero's CLI reads.
func newPatch(s progress.Snapshot) patch {
	p := patch{
		Metadata: patchMetadata{Annotations: map[string]string{ProgressAnnotation: encode(s)}},
		Status:   map[string]any{},
	}
	if s.TotalBytes > 0 {
		p.Status["progress"] = map[string]int64{"bytesDone": s.BytesDone, "totalBytes": s.TotalBytes}
	}
	return p
}

// encode writes v as JSON without escaping <, > and &: every byte of a patch counts.
func encode(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // plain structs of our own: cannot fail
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// write sends a patch once.
func (a *Agent) write(ctx context.Context, object client.Object, p patch) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	// Older CRDs prune the newer fields; that is expected and not worth a warning for each write.
	p.Metadata.UID = object.GetUID()
	raw := client.RawPatch(types.MergePatchType, []byte(encode(p)))
	err := client.WithFieldValidation(a.client, metav1.FieldValidationIgnore).Patch(ctx, object.DeepCopyObject().(client.Object), raw)
	a.metrics.StatusWrite(err)
	return err
}

// persist sends a patch until it has landed. It gives up when the object is gone or another one, when the API server
// refuses the content, or when ctx ends.
func (a *Agent) persist(ctx context.Context, op *operation, p patch) error {
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 6, Cap: 30 * time.Second}
	for {
		if err := stopped(ctx); err != nil {
			return err
		}
		err := a.write(ctx, op.object, p)
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
			return err
		}
		if apierrors.IsConflict(err) {
			if _, err := a.live(ctx, op); errors.Is(err, errDeleted) {
				return err
			}
		}
		op.log.Warn("Write to the API server did not land, trying again", "error", err)
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return fmt.Errorf("%w (last error: %w)", context.Cause(ctx), err)
		}
	}
}

// begin claims the operation for this node, in one write. It returns errNotOurs when the object has ended meanwhile.
func (a *Agent) begin(ctx context.Context, op *operation) error {
	now, err := a.live(ctx, op)
	switch {
	case err != nil:
		return err
	case now.terminal():
		return errNotOurs
	case now.stopRequest() != nil:
		return now.stopRequest()
	}
	op.tracker.Begin(op.previous().Attempt + 1)
	p := newPatch(op.tracker.Snapshot())
	if now.phase != phaseInProgress || now.started == nil {
		p.Status["phase"] = phaseInProgress
		p.Status["startTimestamp"] = metav1.Now()
	}
	if op.kind == Restore {
		p.Status["node"] = a.cfg.NodeName
	}
	return a.persist(ctx, op, p)
}

// live reads the operation's object from the API server, however long that does not answer: what the cache says may be
// older than a terminal write. The error is errDeleted if it is not there any more.
func (a *Agent) live(ctx context.Context, op *operation) (subject, error) {
	for {
		object := op.object.DeepCopyObject().(client.Object)
		err := a.api.Get(ctx, client.ObjectKeyFromObject(object), object)
		switch {
		case apierrors.IsNotFound(err), err == nil && object.GetUID() != op.object.GetUID():
			return subject{}, errDeleted
		case err == nil:
			return subjectOf(object), nil
		}
		op.log.Warn("Cannot read the object, trying again", "error", err)
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return subject{}, context.Cause(ctx)
		}
	}
}

// publish is what the Reporter calls.
func (a *Agent) publish(op *operation) func(context.Context, progress.Snapshot) error {
	return func(ctx context.Context, s progress.Snapshot) error {
		a.announce(op, s)
		if err := a.write(ctx, op.object, newPatch(s)); err != nil {
			op.log.Debug("Progress write was dropped", "error", err)
			return err
		}
		return nil
	}
}

// finish makes the one terminal write, after which nothing is written any more (contracts/velero-node-agent.md 2.4).
func (a *Agent) finish(ctx context.Context, op *operation, v verdict) error {
	ctx, cancel := a.outlive(ctx)
	defer cancel()
	select {
	case <-time.After(op.unsettled()):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	p := v.patch(op)
	err := a.persist(ctx, op, p)
	if apierrors.IsInvalid(err) && v.phase == phaseCanceled {
		p.Status["phase"] = phaseFailed // the CRD is older than 1.17
		err = a.persist(ctx, op, p)
	}
	return err
}

// outlive returns a context for what must still be written when the operation has ended: it ends only a while after the
// agent was told to stop.
func (a *Agent) outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		select {
		case <-a.stopping:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(shutdownGrace):
			cancel(errShutdown)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}
