package nodeagent

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
)

// minChecks is how many checks in a row the API server must answer, a checkInterval apart, before an agent ends another one's
// backup: after an outage a living agent must have had the time to write.
const minChecks = 3

// reconcileBackupElsewhere handles a backup of another node. Its server waits for it, and for all other volumes of the Backup
// with it, so another agent has to end it if its own cannot. An agent that only lost the API server meanwhile gives way when it
// comes back: it changes no object that has ended.
func (a *Agent) reconcileBackupElsewhere(ctx context.Context, pv podvolume.PodVolume) (reconcile.Result, error) {
	seen := a.observe(pv)
	missed, late, err := a.untilDeadline(ctx, pv, seen)
	if err != nil {
		return reconcile.Result{}, err
	}
	if missed != nil && late <= 0 {
		return reconcile.Result{}, a.env.FailOrphan(ctx, pv, missed)
	}
	if left := a.untilOwnTurn(pv, seen); left > 0 {
		return reconcile.Result{RequeueAfter: min(left, late)}, nil
	}
	missing, err := a.missingForResume(ctx, pv)
	a.countCheck(pv.Key(), err == nil)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case missing != nil && seen.noteVersion != "" && seen.answeredChecks >= minChecks:
		return reconcile.Result{}, a.env.FailOrphan(ctx, pv, podvolume.Permanent(v1alpha1.ReasonAgentLost, missing))
	}
	a.reportWaiting(ctx, pv, v1alpha1.ReasonAgentLost, silentAgent(pv.Node), false)
	return reconcile.Result{RequeueAfter: min(a.checkInterval(), late)}, nil
}

// missingForResume returns what a silent agent's backup lacks to be resumed, nil if everything is there: the agent may come back.
func (a *Agent) missingForResume(ctx context.Context, pv podvolume.PodVolume) (missing, err error) {
	err = a.api.Get(ctx, types.NamespacedName{Name: pv.Node}, &corev1.Node{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("node %s does not exist any more, and its node agent does not report", pv.Node), nil
	case err != nil && !apierrors.IsForbidden(err):
		return nil, fmt.Errorf("get node %s: %w", pv.Node, err)
	}
	var pod corev1.Pod
	err = a.api.Get(ctx, types.NamespacedName{Namespace: pv.Pod.Namespace, Name: pv.Pod.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && pv.Pod.UID != "" && pod.UID != pv.Pod.UID):
		return fmt.Errorf("the pod does not exist any more, and the node agent of its node %s does not report", pv.Node), nil
	case err != nil:
		return nil, fmt.Errorf("get pod %s/%s: %w", pv.Pod.Namespace, pv.Pod.Name, err)
	}
	return nil, nil
}

// untilDeadline returns how long a backup of another node has left until this agent ends it for its deadline, and with which
// error. Its own agent comes first, and then the others take turns. Without an error the deadline is not known yet, or there is
// none, and the time is when to look again. An agent that still reports is left alone.
func (a *Agent) untilDeadline(ctx context.Context, pv podvolume.PodVolume, seen observation) (missed error, left time.Duration, _ error) {
	const never = 24 * time.Hour
	owner := backupUID(pv)
	if owner == "" || a.cfg.BackupTimeout <= 0 {
		return nil, never, nil
	}
	a.mu.Lock()
	known, asked := a.deadlines[owner]
	a.mu.Unlock()
	d := known.Deadline
	if !asked {
		// The agents of all nodes would ask at once, and most backups have ended before that matters.
		if wait := a.cfg.AbandonedAfter + a.stagger(pv, owner, a.cfg.AbandonedAfter) - time.Since(seen.firstSeen); wait > 0 {
			return nil, wait, nil
		}
		var err error
		if d, err = a.env.DeadlineOf(ctx, pv); err != nil {
			return nil, 0, err
		}
		a.rememberDeadline(owner, d)
	}
	if d == nil { // no server waits
		return nil, never, nil
	}
	spread := podvolume.DeadlineMargin(d.Timeout) / 4
	left = max(time.Until(d.Local)-2*spread+a.stagger(pv, seen.uid, spread), a.cfg.AbandonedAfter/2-time.Since(seen.lastChange))
	missed = d.Missed(v1alpha1.ReasonAgentLost, fmt.Sprintf("the node agent of node %s does not report, and the volume is not done shortly before", pv.Node))
	return missed, left, nil
}

// knownDeadline is what the deadline of a Backup was when it was asked for; nil where no server waits.
type knownDeadline struct {
	*podvolume.Deadline
	asked time.Time
}

// ended is the time from which nobody needs it.
func (d knownDeadline) ended() time.Time {
	if d.Deadline == nil {
		return d.asked
	}
	return d.Local
}

// rememberDeadline keeps the deadline of a Backup, nil if it has none, and forgets those that have passed.
func (a *Agent) rememberDeadline(backup types.UID, d *podvolume.Deadline) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.deadlines, func(_ types.UID, old knownDeadline) bool { return time.Since(old.ended()) > time.Hour })
	a.deadlines[backup] = knownDeadline{Deadline: d, asked: time.Now()}
}

// backupUID returns the UID of the Backup that pv belongs to, empty if it belongs to none.
func backupUID(pv podvolume.PodVolume) types.UID {
	for _, owner := range pv.Object.GetOwnerReferences() {
		if owner.Kind == "Backup" {
			return owner.UID
		}
	}
	return ""
}
