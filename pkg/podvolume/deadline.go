package podvolume

import (
	"context"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
)

// Deadline is when a server stops waiting for the volumes of a Backup.
type Deadline struct {
	Backup  string
	Timeout time.Duration // from the Backup's start
	Server  time.Time     // by the server's clock
	Local   time.Time     // by this node's monotonic clock
}

// watchDeadline stops a backup shortly before its server gives up on all volumes of the Backup, and returns when that is done, has
// become superfluous, or ctx has ended. A server that gives up loses the records of the completed volumes, too (docs/contracts/velero-node-agent.md 2.4; from 1.18.3 on it cancels the others and
// keeps them, pkg/podvolume/backupper.go). Restores have no deadline: a volume that comes late is better than
// none, and does not affect the others.
func (op *Operation) watchDeadline(ctx context.Context) {
	if op.Kind != Backup || op.env.BackupTimeout <= 0 {
		return
	}
	var d *Deadline
	policy := apiretry.Policy{
		Backoff: wait.Backoff{Duration: 10 * time.Second},
		Notify:  func(err error) { op.log.Warn("Cannot determine the deadline; trying again", "error", err) },
	}
	err := policy.Do(ctx, func() (err error) { d, err = op.env.DeadlineOf(ctx, op.PodVolume); return err })
	if err != nil || d == nil { // ctx has ended, or no server waits
		return
	}
	shown := d.Server.Add(-DeadlineMargin(d.Timeout))
	op.deadline.Store(&shown)
	select {
	case <-time.After(time.Until(d.Local) - DeadlineMargin(d.Timeout)):
		op.stop(d.Missed(v1alpha1.ReasonDeadline, fmt.Sprintf("it is not done %s before", DeadlineMargin(d.Timeout))))
	case <-ctx.Done():
	}
}

// Missed returns the error with which a volume ends that cannot be done before the deadline.
func (d *Deadline) Missed(reason v1alpha1.Reason, what string) error {
	return Permanent(reason, abandonedError{fmt.Errorf("%s the server stops waiting for the volumes of Backup %s (%s after its start) "+
		"and would lose the records of all of them", what, d.Backup, d.Timeout)})
}

// DeadlineOf returns the deadline of a backup, nil if no server waits for it. The Backup's start is a time of the cluster's
// clocks, and is not compared with this node's own.
func (e *Environment) DeadlineOf(ctx context.Context, pv PodVolume) (*Deadline, error) {
	backup, err := e.owningBackup(ctx, pv)
	if err != nil {
		return nil, err
	}
	if backup == nil || backup.Status.Phase != velerov1.BackupPhaseInProgress || backup.Status.StartTimestamp == nil {
		return nil, nil
	}
	server, local, err := e.serverTime(ctx)
	if err != nil {
		return nil, err
	}
	timeout := e.backupTimeout(backup)
	end := backup.Status.StartTimestamp.Add(timeout)
	// Added to a monotonic reading: this node's clock may be set at any time.
	return &Deadline{Backup: backup.Name, Timeout: timeout, Server: end, Local: local.Add(end.Sub(server))}, nil
}

// DeadlineMargin returns how long before the server's timeout a backup is stopped. A worker may need half a minute to end, and
// the clocks of server and node differ.
func DeadlineMargin(timeout time.Duration) time.Duration { return min(2*time.Minute, timeout/10) }

// backupTimeout returns how long the server waits, from the start of the Backup.
func (e *Environment) backupTimeout(backup *velerov1.Backup) time.Duration {
	text, ok := backup.Annotations[velerov1.PodVolumeOperationTimeoutAnnotation]
	if !ok {
		return e.BackupTimeout
	}
	timeout, err := time.ParseDuration(text)
	if err != nil || timeout <= 0 {
		e.Logger.Warn("Invalid timeout annotation; using the default, as the server does", "backup", backup.Name, "annotation", velerov1.PodVolumeOperationTimeoutAnnotation, "value", text)
		return e.BackupTimeout
	}
	return timeout
}

// owningBackup returns the Backup that pv belongs to, nil if it has none or that does not exist any more.
func (e *Environment) owningBackup(ctx context.Context, pv PodVolume) (*velerov1.Backup, error) {
	for _, owner := range pv.Object.GetOwnerReferences() {
		if owner.Kind != "Backup" {
			continue
		}
		var backup velerov1.Backup
		err := e.API.Get(ctx, types.NamespacedName{Namespace: e.Namespace, Name: owner.Name}, &backup)
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
