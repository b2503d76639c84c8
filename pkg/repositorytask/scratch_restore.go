package repositorytask

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// createRestore makes the PodVolumeRestore as a Velero server does, for the pod that waits.
func (s *scratch) createRestore(ctx context.Context) error {
	b := s.backup
	identifier, err := s.repositories.identifier(ctx, b)
	if err != nil {
		return err
	}
	s.pvr.Annotations = map[string]string{v1alpha1.AnnotationCompare: yes}
	s.pvr.Labels[velerov1.PodUIDLabel], s.pvr.Labels[velerov1.PVCUIDLabel] = string(s.pod.UID), string(s.claim.UID)
	s.pvr.Spec = velerov1.PodVolumeRestoreSpec{
		Pod:    corev1.ObjectReference{Kind: "Pod", Namespace: s.pod.Namespace, Name: s.pod.Name, UID: s.pod.UID},
		Volume: scratchVolume, SnapshotID: b.Status.SnapshotID, SnapshotSize: s.size, UploaderType: v1alpha1.UploaderName(b.Spec.UploaderType),
		BackupStorageLocation: b.Spec.BackupStorageLocation, RepoIdentifier: identifier, SourceNamespace: b.Spec.Pod.Namespace,
	}
	return s.createObject(ctx, s.pvr)
}

// awaitRestore waits for the end of the restore, and returns what its node agent has found when it compared. Only that is a result: a
// restore that has completed proves nothing without it.
func (s *scratch) awaitRestore(ctx context.Context) (uploader.VerifyResult, error) {
	changed, version := time.Now(), ""
	for {
		err := s.api.Get(ctx, client.ObjectKeyFromObject(s.pvr), s.pvr)
		switch {
		case apierrors.IsNotFound(err):
			return uploader.VerifyResult{}, &scratchError{v1alpha1.ReasonDeleted, true, "somebody has deleted PodVolumeRestore " + s.pvr.Name}
		case err != nil || s.pvr.ResourceVersion != version:
			changed, version = time.Now(), s.pvr.ResourceVersion
		}
		var shown v1alpha1.VolumeProgress
		_ = json.Unmarshal([]byte(s.pvr.Annotations[v1alpha1.AnnotationProgress]), &shown) // none before an agent has seen it
		switch s.pvr.Status.Phase {
		case velerov1.PodVolumeRestorePhaseCompleted, velerov1.PodVolumeRestorePhaseFailed, velerov1.PodVolumeRestorePhaseCanceled:
			return s.found(shown.Reason)
		default:
		}
		if limit := s.silence(shown.State); time.Since(changed) > limit {
			return uploader.VerifyResult{}, &scratchError{v1alpha1.ReasonAgentLost, true, fmt.Sprintf("no node agent has written to PodVolumeRestore %s for %s: look at the node agent of node %s, where its pod runs", s.pvr.Name, limit, s.pod.Spec.NodeName)}
		}
		s.show(&shown)
		if err := apiretry.Sleep(ctx, s.pollInterval()); err != nil {
			return uploader.VerifyResult{}, err
		}
	}
}

// silence is how long the restore may stay the same, in a state that an agent has written, or in none.
func (s *scratch) silence(state v1alpha1.State) time.Duration {
	if state == "" {
		return s.cfg.ScratchTimeout
	}
	return agentSilence
}

// show reports how far the restore is. Its bytes are those that are restored and those that are compared, so half of them are the volume's.
func (s *scratch) show(shown *v1alpha1.VolumeProgress) {
	if s.pvr.Status.Phase != velerov1.PodVolumeRestorePhaseInProgress || shown.State == v1alpha1.StateWaiting || shown.State == v1alpha1.StateQueued {
		s.tracker.Report(progress.Reading{
			Stage: progress.StageWaiting, Reason: shown.Reason, Message: cmp.Or(shown.Message, fmt.Sprintf("PodVolumeRestore %s is %s", s.pvr.Name, cmp.Or(string(shown.State), "New"))),
		})
		return
	}
	s.report(s.index, progress.Reading{Stage: progress.StageTransferring, BytesDone: min(shown.BytesDone/2, s.size), CurrentItem: shown.CurrentItem})
}

// found is the result of a restore that has ended for a reason, empty if there is none.
func (s *scratch) found(reason v1alpha1.Reason) (uploader.VerifyResult, error) {
	completed := s.pvr.Status.Phase == velerov1.PodVolumeRestorePhaseCompleted
	var compared v1alpha1.Comparison
	document, ok := s.pvr.Annotations[v1alpha1.AnnotationComparison]
	switch {
	case !completed && reason != v1alpha1.ReasonRestoreMismatch:
		mayPass := reason == v1alpha1.ReasonPodGone || reason == v1alpha1.ReasonAgentLost
		return uploader.VerifyResult{}, &scratchError{cmp.Or(reason, v1alpha1.ReasonDataPath), mayPass, fmt.Sprintf("the restore is %s: %s", s.pvr.Status.Phase, s.pvr.Status.Message)}
	case !ok:
		return uploader.VerifyResult{}, &scratchError{v1alpha1.ReasonUnsupported, false, fmt.Sprintf("the node agent of node %s has restored the volume, but does not compare: it is another one than this version's", s.pod.Spec.NodeName)}
	}
	if err := json.Unmarshal([]byte(document), &compared); err != nil {
		return uploader.VerifyResult{}, &scratchError{v1alpha1.ReasonUnsupported, false, fmt.Sprintf("annotation %s: %v", v1alpha1.AnnotationComparison, err)}
	}
	if completed != (compared.Mismatched == 0) {
		return uploader.VerifyResult{}, &scratchError{v1alpha1.ReasonUnsupported, false, fmt.Sprintf("PodVolumeRestore %s is %s, with %d mismatches: it contradicts itself", s.pvr.Name, s.pvr.Status.Phase, compared.Mismatched)}
	}
	result := uploader.VerifyResult{Files: compared.Files, Bytes: compared.Bytes, Mismatched: compared.Mismatched, FailedPaths: compared.Paths}
	if compared.Mismatched > 0 {
		result.LastError = fmt.Sprintf("%s (%s)", compared.Example, differences(compared.Differences))
	}
	return result, nil
}

// differences counts what differs, such as "2 content, 1 owner".
func differences(counts map[string]int64) string {
	var said []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		said = append(said, fmt.Sprintf("%d %s", counts[what], text.Line(what, maxPath)))
	}
	return strings.Join(said, ", ")
}
