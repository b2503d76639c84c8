package podvolume

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

const (
	writeTimeout = 30 * time.Second
	// claimTimeout is how long an operation with a slot tries to write its claim.
	claimTimeout = 30 * time.Second
	// veleroFinalizer is left on objects that Velero's own agent has touched since 1.17, also on copies of them that come
	// from another cluster; whoever ends such an object has to take it off (docs/contracts/velero-node-agent.md 5.4).
	veleroFinalizer = "velero.io/pod-volume-finalizer"
)

var errClaimTimeout = fmt.Errorf("the claim was not written within %s", claimTimeout)

// patch is a JSON merge patch of the fields that the agent owns. Neither CRD has a status subresource, in any version, so
// that one patch can change annotations and status together.
type patch struct {
	Metadata patchMetadata  `json:"metadata"`
	Status   map[string]any `json:"status,omitempty"`
}

type patchMetadata struct {
	UID             types.UID          `json:"uid,omitempty"` // the API server rejects a patch of a later object of the same name
	Annotations     map[string]string  `json:"annotations,omitempty"`
	Labels          map[string]*string `json:"labels,omitempty"`          // nil: removed
	Finalizers      *[]string          `json:"finalizers,omitempty"`      // nil: not changed
	ResourceVersion string             `json:"resourceVersion,omitempty"` // only where two agents may write
}

// newPatch returns a patch with s as the annotation and, once the total is known, as status.progress, which Velero's CLI reads.
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

// encode returns v as JSON without escaping <, > and &, which keeps patches short.
func encode(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err)) // plain structs of our own: cannot fail
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// send sends a patch once, and returns the object as it is afterwards.
func (e *Environment) send(ctx context.Context, object client.Object, p patch) (client.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	p.Metadata.UID = object.GetUID()
	raw := client.RawPatch(types.MergePatchType, []byte(encode(p)))
	written := object.DeepCopyObject().(client.Object)
	// Older CRDs prune the newer fields; that is expected and not worth a warning for each write.
	err := client.WithFieldValidation(e.Client, metav1.FieldValidationIgnore).Patch(ctx, written, raw)
	e.Metrics.StatusWrite(err)
	return written, err
}

// WriteSnapshot writes s on pv's version of its object, once, and returns the object as it is afterwards. With take the object
// comes into the watch of this node's agent.
func (e *Environment) WriteSnapshot(ctx context.Context, pv PodVolume, s progress.Snapshot, take bool) (client.Object, error) {
	p := newPatch(s)
	if take {
		p.Metadata.Labels = pv.takeLabels(e.NodeName)
	}
	p.Metadata.ResourceVersion = pv.Object.GetResourceVersion()
	return e.send(ctx, pv.Object, p)
}

// patchWithRetry applies mutate to the live object and retries until the API server accepts the patch. It gives up with
// mutate's error, with ErrDeleted if the object or its UID is gone, if the API server finds the content invalid, and when ctx
// ends.
func (op *Operation) patchWithRetry(ctx context.Context, mutate func(fresh PodVolume) (patch, error)) error {
	var gaveUp error
	policy := apiretry.Policy{
		Backoff: wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 9, Cap: 30 * time.Second},
		Retry:   func(err error) bool { return gaveUp == nil && !apierrors.IsInvalid(err) },
		Notify: func(err error) {
			if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) { // another writer was faster: expected
				op.log.Warn("Patch failed; trying again", "error", err)
			}
		},
	}
	return policy.Do(ctx, func() error {
		var fresh PodVolume
		var p patch
		if fresh, gaveUp = op.getFresh(ctx); gaveUp != nil {
			return gaveUp
		}
		if p, gaveUp = mutate(fresh); gaveUp != nil {
			return gaveUp
		}
		p.Metadata.ResourceVersion = fresh.Object.GetResourceVersion()
		_, err := op.env.send(ctx, op.Object, p)
		return err
	})
}

// getFresh reads the object from the API server, and retries until that answers: the cache may be older than a terminal write.
// The error is ErrDeleted if the object does not exist any more.
func (op *Operation) getFresh(ctx context.Context) (PodVolume, error) {
	object := op.emptyObject()
	policy := apiretry.Policy{
		Backoff: wait.Backoff{Duration: 5 * time.Second},
		Retry:   func(err error) bool { return !apierrors.IsNotFound(err) },
		Notify:  func(err error) { op.log.Warn("Cannot read the object; trying again", "error", err) },
	}
	err := policy.Do(ctx, func() error { return op.env.API.Get(ctx, client.ObjectKeyFromObject(op.Object), object) })
	switch {
	case apierrors.IsNotFound(err), err == nil && object.GetUID() != op.Object.GetUID():
		return PodVolume{}, ErrDeleted
	case err != nil:
		return PodVolume{}, err
	default:
		return FromObject(object), nil
	}
}

// claim makes the object this node's, in one patch: phase InProgress, start time, finalizer. It returns ErrEnded if the object
// has ended meanwhile, and an unansweredError if the API server does not accept the claim within claimTimeout: others may have
// the slot then.
func (op *Operation) claim(ctx context.Context) error {
	op.tracker.Begin(op.attempt)
	ctx, cancel := context.WithTimeoutCause(ctx, claimTimeout, errClaimTimeout)
	defer cancel()
	err := op.patchWithRetry(ctx, func(fresh PodVolume) (patch, error) {
		switch {
		case fresh.Terminal():
			return patch{}, ErrEnded
		case fresh.StopRequest() != nil:
			return patch{}, fresh.StopRequest()
		}
		op.resumed = fresh.Phase == PhaseInProgress // or our own claim, if its answer was lost: harmless
		p := newPatch(op.tracker.Snapshot())
		p.Metadata.Finalizers, p.Metadata.Labels = withFinalizer(fresh.Object), fresh.takeLabels(op.env.NodeName)
		if fresh.Phase != PhaseInProgress || fresh.Started == nil {
			p.Status["phase"] = PhaseInProgress
			p.Status["startTimestamp"] = metav1.Now()
		}
		if op.Kind == Restore {
			p.Status["node"] = op.env.NodeName
		}
		return p, nil
	})
	if errors.Is(err, errClaimTimeout) {
		return unansweredError{err}
	}
	return err
}

// publish writes s on the object. The Reporter calls it, and again with a later Snapshot if it fails.
func (op *Operation) publish(ctx context.Context, s progress.Snapshot) error {
	err := op.writeProgress(ctx, s)
	if err != nil {
		op.log.Debug("Progress was not written", "error", err)
	}
	return err
}

// writeProgress writes s on the object, unless that has ended: another agent ends it if this one was cut off from the API server
// for too long, and nothing may be written after that (docs/contracts/velero-node-agent.md 2.4). So a write names the version
// that it changes: the cache's, which costs no request, or else the live one.
func (op *Operation) writeProgress(ctx context.Context, s progress.Snapshot) error {
	err := op.writeProgressOnVersion(ctx, op.env.Client, s)
	if apierrors.IsConflict(err) {
		err = op.writeProgressOnVersion(ctx, op.env.API, s)
	}
	if errors.Is(err, ErrEnded) {
		op.stop(ErrEnded)
	}
	return err
}

// writeProgressOnVersion writes s on the version of the object that reader returns.
func (op *Operation) writeProgressOnVersion(ctx context.Context, reader client.Reader, s progress.Snapshot) error {
	object := op.emptyObject()
	if err := reader.Get(ctx, client.ObjectKeyFromObject(op.Object), object); err != nil {
		return fmt.Errorf("get the object: %w", err)
	}
	known := FromObject(object)
	if known.Terminal() {
		return ErrEnded
	}
	p := newPatch(s)
	p.Metadata.Labels = known.takeLabels(op.env.NodeName)
	p.Metadata.ResourceVersion = object.GetResourceVersion()
	_, err := op.env.send(ctx, op.Object, p)
	return err
}

// withFinalizer returns the object's finalizers with ours, nil if it is among them.
func withFinalizer(object client.Object) *[]string {
	finalizers := object.GetFinalizers()
	if slices.Contains(finalizers, v1alpha1.FinalizerPodVolume) {
		return nil
	}
	all := append(slices.Clone(finalizers), v1alpha1.FinalizerPodVolume)
	return &all
}

// withoutFinalizers returns the object's finalizers without those of node agents, nil if it has none of these.
func withoutFinalizers(object client.Object) *[]string {
	rest := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == v1alpha1.FinalizerPodVolume || f == veleroFinalizer })
	if len(rest) == len(object.GetFinalizers()) {
		return nil
	}
	rest = append([]string{}, rest...) // not null, which JSON merge patch defines as removal
	return &rest
}

// HasFinalizer reports whether the object has a finalizer of node agents.
func (pv PodVolume) HasFinalizer() bool { return withoutFinalizers(pv.Object) != nil }

// RemoveFinalizers removes the finalizers of node agents from pv's version of its object, once.
func (e *Environment) RemoveFinalizers(ctx context.Context, pv PodVolume) error {
	_, err := e.send(ctx, pv.Object, patch{Metadata: patchMetadata{
		Finalizers: withoutFinalizers(pv.Object), ResourceVersion: pv.Object.GetResourceVersion(),
	}})
	return err
}
