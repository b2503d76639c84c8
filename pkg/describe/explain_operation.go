package describe

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// OperationCase is what is known around a Backup or Restore.
type OperationCase struct {
	At        time.Time
	Operation Operation
	Deleting  bool
	Totals    Totals
	Volumes   []Explanation // those that have not completed

	Others       []Operation  // of the same kind in the namespace, which run
	Servers      []corev1.Pod // of Velero's server and of our restore controller, in the namespace
	ServersKnown bool

	Deletions      []velerov1.DeleteBackupRequest // that ask for the end of this Backup
	DeletionsKnown bool

	Events []Event
}

// Explain says why the operation is where it is.
func (c *OperationCase) Explain() Explanation {
	o := &c.Operation
	e := Explanation{Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, State: o.Phase, Events: c.Events, Causes: Causes(c.Volumes), Volumes: c.Volumes}
	if c.Deleting {
		e.fact("it is being deleted: it goes when its server has removed what belongs to it")
	}
	switch o.Verdict() {
	case VerdictCompleted:
		e.Why = "it has completed"
	case VerdictPartial, VerdictFailed:
		c.explainFailure(&e)
	case VerdictRunning, VerdictDeleting:
		if !c.nobodyServes(&e) {
			c.explainPhase(&e)
		}
	}
	if c.Totals.Volumes > 0 {
		e.fact("volumes: %s", c.Totals.String())
	}
	return e
}

func (c *OperationCase) explainFailure(e *Explanation) {
	o := &c.Operation
	kind := strings.ToLower(o.Kind)
	switch {
	case len(o.ValidationErrors) > 0:
		e.Why = "it was refused: " + strings.Join(o.ValidationErrors, "; ")
		e.do("correct it, and make a new " + kind)
		return
	case o.FailureReason != "":
		e.Why = "it failed: " + o.FailureReason
	case o.Phase == string(VerdictFailed):
		e.Why = "it failed without a reason"
	default:
		e.Why = "some items or volumes failed: " + text.Count(o.Errors, "error", "errors")
	}
	e.do(fmt.Sprintf("read what went wrong: kubectl plimsoll describe %s %s, velero %s logs %s", kind, o.Name, kind, o.Name))
	e.See = seeFails
	if o.Kind == KindRestore {
		e.See = seeEnds
	}
}

// nobodyServes finds out whether there is a server at all.
func (c *OperationCase) nobodyServes(e *Explanation) bool {
	if !c.ServersKnown {
		return false
	}
	why := ""
	for i := range c.Servers {
		reason := whyNotReady(&c.Servers[i])
		if reason == "" {
			return false
		}
		why = "pod " + c.Servers[i].Name + " " + reason
	}
	server := "Velero server"
	if c.Operation.Kind == KindRestore {
		server = "Velero server or restore controller"
	}
	e.Why = fmt.Sprintf("no %s runs in namespace %s", server, c.Operation.Namespace)
	if why != "" {
		e.Why += ": " + why
	}
	e.do("bring it back; what it had begun when it ended, a Velero server makes Failed when it starts")
	if c.Operation.Kind == KindRestore {
		e.See = seeRestarts
	}
	return true
}

func (c *OperationCase) explainPhase(e *Explanation) {
	o := &c.Operation
	switch o.Phase {
	case "New", "Queued", "ReadyToStart":
		c.explainQueue(e)
	case phaseInProgress:
		c.explainProgress(e)
	case "WaitingForPluginOperations", "WaitingForPluginOperationsPartiallyFailed":
		a := o.Operations
		e.Why = fmt.Sprintf("plugins and data movers still work: %d of %d operations completed, %d failed", a.Completed, a.Attempted, a.Failed)
		e.do(fmt.Sprintf("velero %s describe %s --details lists them", strings.ToLower(o.Kind), o.Name))
	case "Finalizing", "FinalizingPartiallyFailed":
		e.Why = "its items and volumes are done; the server writes the last of it to the backup store"
	case string(VerdictDeleting):
		c.explainDeletion(e)
	default:
		e.Why = "it is in phase " + o.Phase
	}
	if strings.HasSuffix(o.Phase, string(VerdictPartial)) {
		e.fact("it will end as PartiallyFailed: %s so far", text.Count(o.Errors, "error", "errors"))
	}
}

// explainDeletion is about a Backup that is being deleted. It stays as it is if that fails, until somebody asks again.
func (c *OperationCase) explainDeletion(e *Explanation) {
	e.Why = "it is being deleted, in the backup store, too"
	if !c.DeletionsKnown {
		return
	}
	var errs []string
	for i := range c.Deletions {
		d := &c.Deletions[i]
		if d.Status.Phase != velerov1.DeleteBackupRequestPhaseProcessed {
			e.fact("that was asked for %s ago", Age(c.At, d.CreationTimestamp.Time))
			return
		}
		errs = append(errs, d.Status.Errors...)
	}
	e.Why = "its deletion was asked for and has ended, but it is still there"
	if len(errs) > 0 {
		e.Why = "its deletion has failed: " + strings.Join(errs, "; ")
	}
	e.do("delete it again when the cause is gone: velero backup delete " + c.Operation.Name)
}

// explainQueue is about what is not begun. A server does one after the other, unless it is told otherwise.
func (c *OperationCase) explainQueue(e *Explanation) {
	o := &c.Operation
	kind := strings.ToLower(o.Kind)
	switch {
	case o.QueuePosition > 0:
		e.Why = fmt.Sprintf("it is number %d in the queue of the server", o.QueuePosition)
	case len(c.Others) > 0:
		e.Why = "the server is busy with another " + kind
	default:
		e.Why = fmt.Sprintf("the server has not started it in the %s since it was made", Age(c.At, o.Created))
		e.do("look at the log of the server")
	}
	for i := range c.Others {
		other := &c.Others[i]
		since := "which has not said when it began"
		if !other.Started.IsZero() {
			since = "for " + Age(c.At, other.Started)
		}
		e.fact("%s %s runs, %s", kind, other.Name, since)
	}
}

func (c *OperationCase) explainProgress(e *Explanation) {
	i := &c.Operation.Items
	open := c.Totals.Volumes - c.Totals.Ended()
	share, known := i.Share()
	switch {
	case i.Step == v1alpha1.StepCollecting:
		e.Why = "the items of the backup are being counted"
	case i.Step == v1alpha1.StepFinalizing:
		e.Why = "its items and volumes are done; the controller writes the last of it to the backup store"
	case open > 0 && (i.Step == v1alpha1.StepVolumes || known && share == 100):
		e.Why = "all items are done; it waits for " + text.Count(open, "volume", "volumes")
	case known:
		e.Why = fmt.Sprintf("it works on its items: %d of %d (%d%%)", i.Done, i.Total, share)
	default:
		e.Why = fmt.Sprintf("it works on its items: %d, total %s", i.Done, NotKnownYet)
	}
	if i.Current != "" {
		e.fact("the last item: %s", i.Current)
	}
	if i.Message != "" {
		e.fact("%s", i.Message)
	}
	if open > 0 && len(e.Causes) > 0 && len(e.Causes[0].Volumes) == 1 {
		v := &c.Volumes[0]
		e.fact("the first to look at: %s, %s: %s", cmp.Or(v.Subject, v.Name), v.State, v.Why)
	}
}
