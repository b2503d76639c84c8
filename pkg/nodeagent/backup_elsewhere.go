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
)

// minLooks is how many looks in a row the API server must answer, a lookPause apart, before an agent ends another one's
// backup: after an outage an agent that lives has to have had the time to write.
const minChecks = 3

// reconcileBackupElsewhere handles a backup of another node. Its server waits for it, and for all other volumes of the Backup
// with it, so that somebody has to end it if its own agent cannot. An agent that only lost the API server meanwhile gives way
// when it comes back: it changes no object that has ended.
func (a *Agent) reconcileBackupElsewhere(ctx context.Context, s PodVolume) (reconcile.Result, error) {
	seen := a.observe(s)
	missed, late, err := a.untilDeadline(ctx, s, seen)
	if err != nil {
		return reconcile.Result{}, err
	}
	if missed != nil && late <= 0 {
		return reconcile.Result{}, a.failOrphan(ctx, s, missed)
	}
	if left := a.untilOwnTurn(s, seen); left > 0 {
		return reconcile.Result{RequeueAfter: min(left, late)}, nil
	}
	gone, err := a.missingForResume(ctx, s)
	a.countCheck(s.Key(), err == nil)
	switch {
	case err != nil:
		return reconcile.Result{}, err
	case gone != nil && seen.noteVersion != "" && seen.answeredChecks >= minChecks:
		return reconcile.Result{}, a.failOrphan(ctx, s, Permanent(ReasonAgentLost, gone))
	}
	a.reportWaiting(ctx, s, ReasonAgentLost, silentAgent(s.Node))
	return reconcile.Result{RequeueAfter: min(a.cfg.checkInterval(), late)}, nil
}

// missingForResume returns what a silent agent's backup cannot go on without, nil if everything is there: the agent may come back.
func (a *Agent) missingForResume(ctx context.Context, s PodVolume) (gone, err error) {
	err = a.api.Get(ctx, types.NamespacedName{Name: s.Node}, &corev1.Node{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("node %s does not exist any more, and its node agent does not report", s.Node), nil
	case err != nil && !apierrors.IsForbidden(err):
		return nil, fmt.Errorf("get node %s: %w", s.Node, err)
	}
	var pod corev1.Pod
	err = a.api.Get(ctx, types.NamespacedName{Namespace: s.Pod.Namespace, Name: s.Pod.Name}, &pod)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && s.Pod.UID != "" && pod.UID != s.Pod.UID):
		return fmt.Errorf("the pod does not exist any more, and the node agent of its node %s does not report", s.Node), nil
	case err != nil:
		return nil, fmt.Errorf("get pod %s/%s: %w", s.Pod.Namespace, s.Pod.Name, err)
	}
	return nil, nil
}

// untilDeadline returns how long a backup of another node has left until this agent ends it for its deadline, and with what.
// Its own agent comes first, and then the others take turns. Without an error it has not been found out yet, or there is
// nothing to find out, and the time is when to look again. An agent that still reports is left alone.
func (a *Agent) untilDeadline(ctx context.Context, s PodVolume, seen observation) (missed error, left time.Duration, _ error) {
	const never = 24 * time.Hour
	owner := backupUID(s)
	if owner == "" || a.cfg.BackupTimeout <= 0 {
		return nil, never, nil
	}
	a.mu.Lock()
	d, known := a.deadlines[owner]
	a.mu.Unlock()
	if !known {
		// The agents of all nodes would ask at once, and most backups have ended before that matters.
		if wait := a.cfg.AbandonedAfter + a.Stagger(owner, a.cfg.AbandonedAfter) - time.Since(seen.firstSeen); wait > 0 {
			return nil, wait, nil
		}
		var err error
		if d, err = a.DeadlineOf(ctx, s); err != nil {
			return nil, 0, err
		}
		a.rememberDeadline(owner, d)
	}
	if d == nil {
		return nil, never, nil // nobody waits
	}
	spread := DeadlineMargin(d.Timeout) / 4
	left = max(time.Until(d.Local)-2*spread+a.Stagger(seen.uid, spread), a.cfg.AbandonedAfter/2-time.Since(seen.lastChange))
	missed = d.Missed(ReasonAgentLost, fmt.Sprintf("the node agent of node %s does not report, and the volume is not done shortly before", s.Node))
	return missed, left, nil
}

// rememberDeadline keeps the deadline of a Backup, nil if it has none, and forgets those that have passed.
func (a *Agent) rememberDeadline(backup types.UID, d *Deadline) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.deadlines, func(_ types.UID, old *Deadline) bool { return old != nil && time.Since(old.Local) > time.Hour })
	a.deadlines[backup] = d
}

// backupUID returns the UID of the Backup that s belongs to; empty if it belongs to none.
func backupUID(s PodVolume) types.UID {
	for _, owner := range s.Object.GetOwnerReferences() {
		if owner.Kind == "Backup" {
			return owner.UID
		}
	}
	return ""
}
