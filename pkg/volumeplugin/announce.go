package volumeplugin

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

const reportingController = "plimsoll.io/volumeplugin"

// announced is what people were told about an operation.
type announced struct {
	begun     bool
	goesOn    bool
	milestone int32 // percent
	stalls    int
}

func told(o opened) announced {
	a := announced{goesOn: o.goesOn && o.record.status.Phase != ""}
	if p := o.record.status.Percent; p != nil {
		a.milestone = *p / 25 * 25
	}
	return a
}

// announce makes Events of what a write has changed. An Event that is not written is lost.
func (o *Operation) announce(ctx context.Context, before, after *record) {
	status := after.status
	if !o.told.begun {
		o.told.begun = true
		if o.told.goesOn {
			o.event(ctx, after, corev1.EventTypeNormal, v1alpha1.EventResumed, "%s goes on in another process of the plugin", o.subject)
		} else {
			o.event(ctx, after, corev1.EventTypeNormal, v1alpha1.EventStarted, "%s started", o.subject)
		}
	}
	switch {
	case status.Phase == v1alpha1.PhaseCompleted:
		o.event(ctx, after, corev1.EventTypeNormal, v1alpha1.EventCompleted, "%s completed: %d bytes in %s", o.subject, status.Progress.BytesDone, took(status))
		return
	case status.Phase == v1alpha1.PhaseFailed:
		o.event(ctx, after, corev1.EventTypeWarning, v1alpha1.EventFailed, "%s failed: %s", o.subject, status.Message)
		return
	case status.State == string(progress.StateStalled) && before.status.State != status.State:
		o.told.stalls++
		if rare(o.told.stalls) {
			o.event(ctx, after, corev1.EventTypeWarning, v1alpha1.EventStalled, "%s is stalled: no byte moved and no other work was seen since %s", o.subject, status.LastWorkTimestamp.UTC().Format(time.RFC3339))
		}
	case before.status.State == string(progress.StateStalled) && before.status.State != status.State && o.told.stalls > 0 && rare(o.told.stalls):
		o.event(ctx, after, corev1.EventTypeNormal, v1alpha1.EventResumed, "%s moves again", o.subject)
	}
	if p := status.Percent; p != nil && *p/25*25 > o.told.milestone {
		o.told.milestone = *p / 25 * 25
		o.event(ctx, after, corev1.EventTypeNormal, v1alpha1.EventProgress, "%s: %d %% of %d bytes done", o.subject, *p, status.Progress.TotalBytes)
	}
}

// rare picks the first, second, fourth, ... of an endless row.
func rare(n int) bool { return n&(n-1) == 0 }

func took(s *v1alpha1.VolumeOperationStatus) time.Duration {
	if s.StartTimestamp == nil || s.CompletionTimestamp == nil {
		return 0
	}
	return s.CompletionTimestamp.Sub(s.StartTimestamp.Time)
}

func (o *Operation) event(ctx context.Context, about *record, eventType, reason, format string, args ...any) {
	r := o.recorder
	gvk, err := apiutil.GVKForObject(about.Object, r.Client.Scheme())
	if err != nil {
		return // it was written: the scheme knows it
	}
	instance, err := os.Hostname()
	if err != nil {
		instance = r.Plugin
	}
	event := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: about.GetNamespace(), GenerateName: stem(about.GetName()) + "-"},
		EventTime:  metav1.NowMicro(), Type: eventType, Reason: reason, Action: reason,
		Note:                text.Shorten(fmt.Sprintf(format, args...), maxMessage-1),
		ReportingController: reportingController, ReportingInstance: text.Shorten(instance, 128),
		Regarding: corev1.ObjectReference{
			APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind,
			Namespace: about.GetNamespace(), Name: about.GetName(), UID: about.GetUID(),
		},
	}
	if err := r.Client.Create(ctx, event); err != nil {
		r.log.noEvent(err)
	}
}
