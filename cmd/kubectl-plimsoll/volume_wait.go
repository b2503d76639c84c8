package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/screen"
)

// pollInterval is the time between two reads of an object.
const pollInterval = time.Second

// cleanUpTimeout limits how long canceling takes after an interruption.
const cleanUpTimeout = 30 * time.Second

// errGone is returned when the object was deleted while the command waited.
var errGone = errors.New("it was deleted")

// waitOptions are how a command waits for the object that it has created.
type waitOptions struct {
	noWait            bool
	timeout           time.Duration
	cancelOnInterrupt bool
}

func (w *waitOptions) addWaitFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&w.noWait, "no-wait", false, "return as soon as the object is created")
	f.DurationVar(&w.timeout, "timeout", 0, "stop waiting after this time with exit code 4; the operation continues; 0: never")
	f.BoolVar(&w.cancelOnInterrupt, "cancel-on-interrupt", false, "cancel the operation on Ctrl-C; by default it continues")
}

func (w *waitOptions) validate() error {
	switch {
	case w.timeout < 0:
		return program.Misused(fmt.Errorf("--timeout=%s is negative", w.timeout))
	case w.noWait && (w.timeout > 0 || w.cancelOnInterrupt):
		return program.Misused(errors.New("--no-wait cannot be combined with --timeout or --cancel-on-interrupt"))
	}
	return nil
}

// announce says what was created: the first line on the output, and for values beside them.
func (w *waitOptions) announce(cmd *cobra.Command, format, resource, name string) {
	out := cmd.OutOrStdout()
	if format != formatTable {
		out = cmd.ErrOrStderr()
	}
	fmt.Fprintf(out, "%s.velero.io/%s created\n", resource, describe.Clean(name))
}

// limited returns a context that ends after --timeout.
func (w *waitOptions) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if w.timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, w.timeout, errTimeout)
}

// follow waits until a PodVolumeBackup or PodVolumeRestore has ended, and writes its progress. It returns the last known Volume,
// and an error with the exit code unless the Volume is Completed.
func (w *waitOptions) follow(cmd *cobra.Command, v *volumes, object client.Object) (describe.Volume, error) {
	ctx, stop := w.limited(cmd.Context())
	defer stop()
	lines := screen.NewLines(cmd.ErrOrStderr())
	ticks := time.NewTicker(pollInterval)
	defer ticks.Stop()
	for {
		view := describe.View{At: time.Now()}
		err := v.api.Get(ctx, client.ObjectKeyFromObject(object), object)
		last := describe.VolumeOf(object)
		last.DropStale(view.At)
		switch {
		case ctx.Err() != nil:
			return last, w.interrupted(ctx, v, object)
		case apierrors.IsNotFound(err):
			return last, &program.ExitError{Code: exitFailed, Err: fmt.Errorf("%s %s: %w", last.Kind, last.Name, errGone)}
		case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
			return last, fmt.Errorf("%s %s continues, but you may not read its progress: %w", last.Kind, last.Name, err)
		case err != nil: // the operation continues; wait until the API server answers again
			view.Notes = []string{"cannot read " + last.Kind + " " + last.Name + ": " + err.Error()}
		}
		view.Volumes = []describe.Volume{last}
		if err := lines.Print(&view); err != nil {
			return last, err
		}
		if last.Ended() {
			return last, resultError(&last)
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return last, w.interrupted(ctx, v, object)
		}
	}
}

// resultError returns nil for a Completed volume, otherwise an error with the exit code.
func resultError(v *describe.Volume) error {
	if v.Phase == string(velerov1.PodVolumeBackupPhaseCompleted) {
		return nil
	}
	return &program.ExitError{Code: exitFailed, Err: fmt.Errorf("%s %s ended as %s: %s", v.Kind, v.Name, v.Phase, describe.Clean(v.Message))}
}

// interrupted cancels the operation if the user has asked for that, and returns an error with the exit code.
func (w *waitOptions) interrupted(ctx context.Context, v *volumes, object client.Object) error {
	what := describe.VolumeOf(object)
	if errors.Is(context.Cause(ctx), errTimeout) {
		return &program.ExitError{Code: exitTimeout, Err: fmt.Errorf("%s %s has not ended after %s; it continues", what.Kind, what.Name, w.timeout)}
	}
	if !w.cancelOnInterrupt {
		return &program.ExitError{Code: exitInterrupted, Err: fmt.Errorf("interrupted; %s %s continues: end it with 'kubectl -n %s delete %ss.velero.io %s'",
			what.Kind, what.Name, what.Namespace, strings.ToLower(what.Kind), what.Name)}
	}
	if err := v.cancel(ctx, object); err != nil {
		return fmt.Errorf("cancel %s %s: %w; it continues", what.Kind, what.Name, err)
	}
	return &program.ExitError{Code: exitInterrupted, Err: fmt.Errorf("interrupted; %s %s is canceled", what.Kind, what.Name)}
}

// cancel asks for the end of an object, after ctx has ended. CRDs before Velero 1.17 have no field for that; there it is deleted.
func (v *volumes) cancel(ctx context.Context, object client.Object) error {
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer stop()
	if err := v.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"cancel":true}}`))); err != nil {
		return err
	}
	asked := false
	switch o := object.(type) {
	case *velerov1.PodVolumeBackup:
		asked = o.Spec.Cancel
	case *velerov1.PodVolumeRestore:
		asked = o.Spec.Cancel
	}
	if asked {
		return nil
	}
	return client.IgnoreNotFound(v.client.Delete(ctx, object))
}
