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

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

const (
	writeTimeout = 30 * time.Second
	// claimTimeout is how long an operation with a slot tries to write its claim.
	claimTimeout = 30 * time.Second
	// shutdownGrace is how long a stopping agent goes on writing: kopia has 35 s to end, and then comes the last write.
	shutdownGrace = 45 * time.Second
)

var errNotClaimed = fmt.Errorf("the claim was not written within %s", claimTimeout)

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
		Metadata: patchMetadata{Annotations: map[string]string{v1alpha1.AnnotationProgress: encode(s)}},
		Status:   map[string]any{},
	}
	if s.TotalBytes > 0 {
		p.Status["progress"] = progressStatus(s)
	}
	return p
}

func progressStatus(s progress.Snapshot) map[string]int64 {
	return map[string]int64{"bytesDone": s.BytesDone, "totalBytes": s.TotalBytes}
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

// patch sends a patch once.
func (a *Agent) patch(ctx context.Context, object client.Object, p patch) error {
	_, err := a.patchObject(ctx, object, p)
	return err
}

// patchObject is write, and returns the object as it is after the patch.
func (a *Agent) patchObject(ctx context.Context, object client.Object, p patch) (client.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	// Older CRDs prune the newer fields; that is expected and not worth a warning for each write.
	p.Metadata.UID = object.GetUID()
	raw := client.RawPatch(types.MergePatchType, []byte(encode(p)))
	written := object.DeepCopyObject().(client.Object)
	err := client.WithFieldValidation(a.client, metav1.FieldValidationIgnore).Patch(ctx, written, raw)
	a.metrics.StatusWrite(err)
	return written, err
}

// patchWithRetry writes what say makes of the object as it is now, until it has landed. It gives up when say does, when the object
// is gone (errDeleted) or another one, when the API server refuses the content, and when ctx ends.
func (a *Agent) patchWithRetry(ctx context.Context, op *Operation, say func(now PodVolume) (patch, error)) error {
	backoff := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 9, Cap: 30 * time.Second}
	for {
		now, err := a.getFresh(ctx, op)
		if err != nil {
			return err
		}
		p, err := say(now)
		if err != nil {
			return err
		}
		p.Metadata.ResourceVersion = now.Object.GetResourceVersion()
		err = a.patch(ctx, op.Object, p)
		if err == nil || apierrors.IsInvalid(err) {
			return err
		}
		// That somebody else has written in between, or deleted it, is no news.
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			op.log.Warn("Write to the API server did not land, trying again", "error", err)
		}
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return fmt.Errorf("%w (last error: %w)", context.Cause(ctx), err)
		}
	}
}

// claim claims the operation for this node, in one write. It returns errNotOurs when the object has ended meanwhile, and
// unanswered when the API server does not take the claim within claimTimeout: others may have the slot then.
func (a *Agent) claim(ctx context.Context, op *Operation) error {
	op.tracker.Begin(op.attempt)
	ctx, cancel := context.WithTimeoutCause(ctx, claimTimeout, errNotClaimed)
	defer cancel()
	err := a.patchClaim(ctx, op)
	if errors.Is(err, errNotClaimed) {
		return unansweredError{err}
	}
	return err
}

func (a *Agent) patchClaim(ctx context.Context, op *Operation) error {
	return a.patchWithRetry(ctx, op, func(now PodVolume) (patch, error) {
		switch {
		case now.Terminal():
			return patch{}, ErrEnded
		case now.StopRequest() != nil:
			return patch{}, now.StopRequest()
		}
		op.resumed = now.Phase == PhaseInProgress // of ourselves, where the answer to a first write was lost: that does no harm
		p := newPatch(op.tracker.Snapshot())
		p.Metadata.Finalizers = withFinalizer(now.Object)
		if now.Phase != PhaseInProgress || now.Started == nil {
			p.Status["phase"] = PhaseInProgress
			p.Status["startTimestamp"] = metav1.Now()
		}
		if op.Kind == Restore {
			p.Status["node"] = a.cfg.NodeName
		}
		return p, nil
	})
}

// getFresh reads the operation's object from the API server, however long that does not answer: what the cache says may be
// older than a terminal write. The error is errDeleted if it is not there any more.
func (a *Agent) getFresh(ctx context.Context, op *Operation) (PodVolume, error) {
	for {
		object := op.Object.DeepCopyObject().(client.Object)
		err := a.api.Get(ctx, client.ObjectKeyFromObject(object), object)
		switch {
		case apierrors.IsNotFound(err), err == nil && object.GetUID() != op.Object.GetUID():
			return PodVolume{}, ErrDeleted
		case err == nil:
			return FromObject(object), nil
		}
		op.log.Warn("Cannot read the object, trying again", "error", err)
		select {
		case <-time.After(5 * time.Second):
		case <-ctx.Done():
			return PodVolume{}, fmt.Errorf("%w (last error: %w)", context.Cause(ctx), err)
		}
	}
}

// publish is what the Reporter calls.
func (a *Agent) publish(op *Operation) func(context.Context, progress.Snapshot) error {
	return func(ctx context.Context, s progress.Snapshot) error {
		a.emitEvents(op, s)
		err := a.writeProgress(ctx, op, s)
		if err != nil {
			op.log.Debug("Progress write was dropped", "error", err)
		}
		return err
	}
}

// writeProgress tells s on the operation's object, unless that has ended: another agent ends it where this one was cut off
// from the API server for too long, and nothing may be written after that (docs/contracts/velero-node-agent.md 2.4). So a write
// names the version that it changes: the cache's, which costs no request, or else the one that the API server has.
func (a *Agent) writeProgress(ctx context.Context, op *Operation, s progress.Snapshot) error {
	err := a.writeProgressVia(ctx, a.client, op, s)
	if apierrors.IsConflict(err) {
		err = a.writeProgressVia(ctx, a.api, op, s)
	}
	if errors.Is(err, ErrEnded) {
		op.stop(ErrEnded)
	}
	return err
}

// writeProgressVia reads the operation's object and writes s on that version of it.
func (a *Agent) writeProgressVia(ctx context.Context, reader client.Reader, op *Operation, s progress.Snapshot) error {
	object := op.Object.DeepCopyObject().(client.Object)
	if err := reader.Get(ctx, client.ObjectKeyFromObject(object), object); err != nil {
		return fmt.Errorf("read the object: %w", err)
	}
	if FromObject(object).Terminal() {
		return ErrEnded
	}
	p := newPatch(s)
	p.Metadata.ResourceVersion = object.GetResourceVersion()
	return a.patch(ctx, op.Object, p)
}

// writeTerminalStatus makes the one terminal write, after which nothing is written any more (docs/contracts/velero-node-agent.md 2.4). The
// verdict is what was written in the end.
func (a *Agent) writeTerminalStatus(op *Operation, v terminalStatus) (terminalStatus, error) {
	select {
	case <-time.After(op.minAgeRemaining()):
	case <-a.shutdownCtx.Done():
		return v, context.Cause(a.shutdownCtx)
	}
	brief := false
	for {
		err := a.patchWithRetry(a.shutdownCtx, op, func(now PodVolume) (patch, error) {
			if now.Terminal() {
				return patch{}, v.terminalErr(now)
			}
			if brief {
				return v.minimalPatch(now), nil
			}
			return v.patch(now), nil
		})
		switch {
		case errors.Is(err, errAlreadyWritten):
			return v, nil
		case !apierrors.IsInvalid(err):
			return v, err
		case v.phase == PhaseCanceled:
			v = v.asFailed(op) // the CRD is older than 1.17
		case !brief:
			op.log.Error("The API server refuses the result, writing the least of it", "error", err)
			brief = true
		default:
			return v, err
		}
	}
}
