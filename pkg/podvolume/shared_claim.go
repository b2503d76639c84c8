package podvolume

import (
	"context"
	"errors"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/donefile"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// The restores of one Restore into one claim have one done file, which is named after the Restore (docs/contracts/velero-node-agent.md 4.4).
// So it must not be written before all of them are complete, or if one of them has failed.

// IndexPod is the index by which Environment.Client finds the PodVolumeRestores of a pod: "<namespace>/<name>".
const IndexPod = "spec.pod"

// podVolumeName names a volume of a pod of this node.
type podVolumeName struct {
	pod    types.NamespacedName
	podUID types.UID
	volume string
	used   bool // the pod's init container has seen that its volumes are complete
}

// sameClaim returns the volumes of this node's pods that have the claim of a pod's volume, the volume itself first. Pods that do not wait for a
// restore do not count.
func (e *Environment) sameClaim(ctx context.Context, pod *corev1.Pod, name string) ([]podVolumeName, error) {
	self := podVolumeName{client.ObjectKeyFromObject(pod), pod.UID, name, RestoreWaitSucceeded(pod)}
	found := []podVolumeName{self}
	claim, ok := claimOf(pod, volume.InPod(pod, name))
	if !ok {
		return found, nil
	}
	var pods corev1.PodList
	if err := e.Client.List(ctx, &pods, client.InNamespace(pod.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the pods that share claim %s/%s: %w", pod.Namespace, claim, err)
	}
	for i := range pods.Items {
		other := &pods.Items[i]
		for j := range other.Spec.Volumes {
			vol := podVolumeName{client.ObjectKeyFromObject(other), other.UID, other.Spec.Volumes[j].Name, RestoreWaitSucceeded(other)}
			isSelf := vol.podUID == self.podUID && vol.volume == self.volume
			if its, ok := claimOf(other, &other.Spec.Volumes[j]); ok && its == claim && !isSelf && HasRestoreWait(other) {
				found = append(found, vol)
			}
		}
	}
	return found, nil
}

func claimOf(pod *corev1.Pod, vol *corev1.Volume) (string, bool) {
	if vol == nil {
		return "", false
	}
	return volume.ClaimName(pod.Name, vol)
}

// PendingRestore returns the name of a PodVolumeRestore, besides the one of rec, that belongs to the same Restore and has yet to complete the
// same directory, empty if there is none. It knows the pods of this node only. Before the directory is marked it asks the API server, too: a
// restore may be on its way to the watches, or from one to the other.
func (e *Environment) PendingRestore(ctx context.Context, pod *corev1.Pod, rec donefile.Record) (string, error) {
	volumes, err := e.sameClaim(ctx, pod, rec.Volume)
	if err != nil {
		return "", err
	}
	for _, vol := range volumes {
		var restores velerov1.PodVolumeRestoreList
		err := e.Client.List(ctx, &restores, client.InNamespace(e.Namespace), client.MatchingFields{IndexPod: vol.pod.String()})
		if err != nil {
			return "", fmt.Errorf("list the restores of pod %s: %w", vol.pod, err)
		}
		if name := e.pendingAmong(restores.Items, vol, rec); name != "" {
			return name, nil
		}
	}
	if len(volumes) == 1 || rec.Marked {
		return "", nil
	}
	return e.pendingUnseen(ctx, volumes, rec)
}

// pendingUnseen is PendingRestore for what no watch has brought.
func (e *Environment) pendingUnseen(ctx context.Context, volumes []podVolumeName, rec donefile.Record) (string, error) {
	var restores velerov1.PodVolumeRestoreList
	err := e.patientAPI.List(ctx, &restores, client.InNamespace(e.Namespace), client.MatchingLabels{velerov1.RestoreUIDLabel: string(rec.Restore)})
	if err != nil {
		return "", fmt.Errorf("list the restores of the Restore: %w", err)
	}
	for _, vol := range volumes {
		if name := e.pendingAmong(restores.Items, vol, rec); name != "" {
			return name, nil
		}
	}
	return "", nil
}

// pendingAmong returns the name of the first of restores that is pending for a volume, empty if none is.
func (e *Environment) pendingAmong(restores []velerov1.PodVolumeRestore, vol podVolumeName, rec donefile.Record) string {
	for i := range restores {
		pvr := &restores[i]
		if pvr.UID != rec.PodVolumeRestore && donefile.RestoreUID(pvr) == rec.Restore && e.isPending(pvr, vol) {
			return pvr.Name
		}
	}
	return ""
}

// isPending reports whether a PodVolumeRestore still has to complete a volume. One that has ended does not. Nor does one whose record says that the
// volume is complete: only its terminal write is missing.
func (e *Environment) isPending(pvr *velerov1.PodVolumeRestore, vol podVolumeName) bool {
	pv := FromRestore(pvr)
	if pv.Terminal() || pv.Volume != vol.volume || pv.Pod.Namespace != vol.pod.Namespace || pv.Pod.Name != vol.pod.Name || pv.Pod.UID != "" && pv.Pod.UID != vol.podUID {
		return false
	}
	rec, err := e.Records.Complete(vol.podUID, pvr)
	return rec == nil || err != nil
}

// failureBeside returns why another restore of the same Restore into the same claim has failed, empty if none has. One that only has inherited the failure
// of another does not count.
func (e *Environment) failureBeside(ctx context.Context, pod *corev1.Pod, rec donefile.Record) (failure string, _ error) {
	err := e.recordsBeside(ctx, pod, rec, func(_ types.UID, other donefile.Record) error {
		if other.Failure != "" && !other.Inherited {
			failure = other.Failure
		}
		return nil
	})
	return failure, err
}

// isWholeBeside reports whether another restore of the same Restore, of another pod, has completed the directory, and that of rec has not written into it
// since: its deletion then fails nobody.
func (e *Environment) isWholeBeside(ctx context.Context, pod *corev1.Pod, rec donefile.Record) (whole bool, _ error) {
	err := e.recordsBeside(ctx, pod, rec, func(podUID types.UID, other donefile.Record) error {
		whole = whole || podUID != pod.UID && other.Complete()
		return nil
	})
	return whole, err
}

// FailBeside records the failure of rec for the other restores of the same Restore into the same claim, unless a pod uses what they have restored.
func (e *Environment) FailBeside(ctx context.Context, pod *corev1.Pod, rec donefile.Record) error {
	return e.recordsBeside(ctx, pod, rec, func(podUID types.UID, other donefile.Record) error {
		if other.Failure != "" || other.Used {
			return nil
		}
		other.Failure, other.Inherited = rec.Failure, true
		return e.Records.Save(podUID, other)
	})
}

// markOverwritten notes that the restore of rec begins to overwrite what other restores of the same Restore have restored into the same claim, unless a pod
// uses that. Should it end without completing the directory, however that is and whether or not its agent runs then, their records do not say that the
// directory is complete. The volume must be locked.
func (e *Environment) markOverwritten(ctx context.Context, pod *corev1.Pod, rec donefile.Record) error {
	return e.recordsBeside(ctx, pod, rec, func(podUID types.UID, other donefile.Record) error {
		if !other.Complete() || other.Used {
			return nil
		}
		other.Overwritten = true
		return e.Records.Save(podUID, other)
	})
}

// clearOverwritten takes that back when the restore of rec has completed the directory, whichever restore had left it incomplete, and with it the failures
// that the others have inherited, unless one of those that have failed by themselves is left. The volume must be locked.
func (e *Environment) clearOverwritten(ctx context.Context, pod *corev1.Pod, rec donefile.Record) error {
	return e.recordsBeside(ctx, pod, rec, func(podUID types.UID, other donefile.Record) error {
		now := other
		now.Overwritten = false
		if now.Inherited && rec.Failure == "" {
			now.Failure, now.Inherited = "", false
		}
		if now == other {
			return nil
		}
		return e.Records.Save(podUID, now)
	})
}

// recordsBeside calls do, one at a time, for the records of the other volumes of the same claim and the same Restore.
func (e *Environment) recordsBeside(ctx context.Context, pod *corev1.Pod, rec donefile.Record, do func(podUID types.UID, other donefile.Record) error) error {
	volumes, err := e.sameClaim(ctx, pod, rec.Volume)
	if err != nil {
		return err
	}
	e.recordsMu.Lock()
	defer e.recordsMu.Unlock()
	var all []error
	for _, vol := range volumes[1:] {
		records, err := e.Records.List(vol.podUID)
		all = append(all, err)
		for _, other := range records {
			if other.Volume == vol.volume && other.Restore == rec.Restore {
				other.Used = other.Used || vol.used
				all = append(all, do(vol.podUID, other))
			}
		}
	}
	return errors.Join(all...)
}
