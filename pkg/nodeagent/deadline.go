package nodeagent

import (
	"context"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// Deadline is when a server stops waiting for the volumes of a Backup.
type Deadline struct {
	Backup  string
	Timeout time.Duration // from the Backup's start
	Server  time.Time     // by the server's clock
	Local   time.Time     // by this node's monotonic clock
}

// watchDeadline fails a backup shortly before its server gives up on all volumes of the Backup. A server that does loses
// the records of those that completed, too (docs/contracts/velero-node-agent.md 2.4; from 1.18.3 on it cancels the others and
// keeps them, pkg/podvolume/backupper.go). Restores have no deadline: a pod whose volume comes late is better off than one
// whose volume never comes, and the other restores are not affected.
func (a *Agent) watchDeadline(ctx context.Context, op *Operation) {
	if op.Kind != Backup || a.cfg.BackupTimeout <= 0 {
		return
	}
	var d *Deadline
	for {
		var err error
		if d, err = a.DeadlineOf(ctx, op.PodVolume); err == nil {
			break
		}
		op.log.Warn("Cannot find out the deadline, trying again", "error", err)
		select {
		case <-time.After(10 * time.Second):
		case <-ctx.Done():
			return
		}
	}
	if d == nil {
		return // nobody waits
	}
	shown := d.Server.Add(-DeadlineMargin(d.Timeout))
	op.deadline.Store(&shown)
	select {
	case <-time.After(time.Until(d.Local) - DeadlineMargin(d.Timeout)):
		op.stop(d.Missed(ReasonDeadline, fmt.Sprintf("it is not done %s before", DeadlineMargin(d.Timeout))))
	case <-ctx.Done():
	}
}

// Missed is the end of a volume for which its Backup's server would wait in vain.
func (d *Deadline) Missed(reason v1alpha1.Reason, what string) error {
	return Permanent(reason, abandonedError{fmt.Errorf("%s the server stops waiting for the volumes of Backup %s (%s after its start) "+
		"and would lose the records of all of them", what, d.Backup, d.Timeout)})
}

// DeadlineOf returns the deadline of a backup, nil if no server waits for it. The Backup's start is a time of the cluster's
// clocks, and is not compared with this node's own.
func (a *Agent) DeadlineOf(ctx context.Context, s PodVolume) (*Deadline, error) {
	backup, err := a.owningBackup(ctx, s)
	if err != nil {
		return nil, err
	}
	if backup == nil || backup.Status.Phase != velerov1.BackupPhaseInProgress || backup.Status.StartTimestamp == nil {
		return nil, nil
	}
	server, local, err := a.serverTime(ctx)
	if err != nil {
		return nil, err
	}
	timeout := a.backupTimeout(backup)
	end := backup.Status.StartTimestamp.Add(timeout)
	// Added to a monotonic reading: this node's clock may be set at any time.
	return &Deadline{Backup: backup.Name, Timeout: timeout, Server: end, Local: local.Add(end.Sub(server))}, nil
}

// DeadlineMargin is how long before the server's timeout a backup is ended. A worker may need half a minute to end, and the clocks
// of server and node differ.
func DeadlineMargin(timeout time.Duration) time.Duration { return min(2*time.Minute, timeout/10) }

// backupTimeout is how long the server waits, from the start of the Backup.
func (a *Agent) backupTimeout(backup *velerov1.Backup) time.Duration {
	text, ok := backup.Annotations[velerov1.PodVolumeOperationTimeoutAnnotation]
	if !ok {
		return a.cfg.BackupTimeout
	}
	timeout, err := time.ParseDuration(text)
	if err != nil || timeout <= 0 {
		a.cfg.Logger.Warn("The Backup's annotation is no duration, as for the server", "backup", backup.Name, "annotation", velerov1.PodVolumeOperationTimeoutAnnotation, "value", text)
		return a.cfg.BackupTimeout
	}
	return timeout
}

// owningBackup returns the Backup that a server made the subject for; nil if there is none, or none any more.
func (a *Agent) owningBackup(ctx context.Context, s PodVolume) (*velerov1.Backup, error) {
	for _, owner := range s.Object.GetOwnerReferences() {
		if owner.Kind != "Backup" {
			continue
		}
		var backup velerov1.Backup
		err := a.api.Get(ctx, types.NamespacedName{Namespace: a.cfg.Namespace, Name: owner.Name}, &backup)
		switch {
		case apierrors.IsNotFound(err), err == nil && backup.UID != owner.UID:
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("get Backup %s: %w", owner.Name, err)
		}
		return &backup, nil
	}
	return nil, nil
}
