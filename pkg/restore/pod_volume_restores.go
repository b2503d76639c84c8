package restore

import (
	"context"
	"fmt"
	"strconv"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/label"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/plimsoll-io/plimsoll/pkg/repository/recorded"
)

var (
	podVolumeRestores  = velerov1.SchemeGroupVersion.WithResource("podvolumerestores")
	backupRepositories = velerov1.SchemeGroupVersion.WithResource("backuprepositories")
)

// restorePodVolumes asks the node agents to restore the volumes of a pod that was just created: one PodVolumeRestore for each,
// in the Restore's namespace. original is the pod as the backup has it. It returns those that it has made, and warnings; each
// error names a volume whose pod waits for ever, unless another Restore fills that volume.
func (s *scope) restorePodVolumes(ctx context.Context, original, created *unstructured.Unstructured) (made []velerov1.PodVolumeRestore, warnings []string, errs []error) {
	snapshots, _ := s.podSnapshots(original)
	for _, snapshot := range snapshots {
		pvr, warning, err := s.restorePodVolume(ctx, original, created, snapshot)
		if err != nil {
			errs = append(errs, fmt.Errorf("restore volume %q of pod %s/%s: %w", snapshot.volume, created.GetNamespace(), created.GetName(), err))
			continue
		}
		made = append(made, *pvr)
		if warning != "" {
			warnings = append(warnings, warning)
		}
	}
	return made, warnings, errs
}

func (s *scope) restorePodVolume(ctx context.Context, original, pod *unstructured.Unstructured, snapshot podSnapshot) (made *velerov1.PodVolumeRestore, warning string, err error) {
	pvr := s.podVolumeRestore(original.GetNamespace(), pod, snapshot)
	claim := podClaim{
		name:   claimsByVolume(pod.Object)[snapshot.volume],
		backup: types.NamespacedName{Namespace: original.GetNamespace(), Name: claimsByVolume(original.Object)[snapshot.volume]},
	}
	again := false
	err = s.engine.retry(ctx, func() (err error) {
		if warning, err = s.complete(ctx, pvr, claim); err != nil {
			return err
		}
		// The answer to an earlier request may be what was lost. Two would write the same volume.
		if again {
			if made, err = s.findPodVolumeRestore(ctx, pvr); err != nil || made != nil {
				return err
			}
		}
		again = true
		made, err = s.createPodVolumeRestore(ctx, pvr)
		return err
	})
	return made, warning, err
}

// complete adds what the cluster must be asked for. The warning tells of a claim that may hold something already.
func (s *scope) complete(ctx context.Context, pvr *velerov1.PodVolumeRestore, claim podClaim) (warning string, err error) {
	if claim.name != "" {
		object, err := s.findObject(ctx, claimObjects, types.NamespacedName{Namespace: pvr.Spec.Pod.Namespace, Name: claim.name})
		if err != nil {
			return "", fmt.Errorf("get its claim: %w", err)
		}
		if err := s.checkRenamed(claim, object); err != nil {
			return "", err
		}
		pvr.Labels[velerov1.PVCUIDLabel] = string(object.GetUID())
		if s.existedBefore(object) {
			warning = fmt.Sprintf("its volume %q is the claim %q, which was there before this restore: files of the backup replace those of the same name, and all others stay",
				pvr.Spec.Volume, claim.name)
		}
	}
	if pvr.Spec.UploaderType == uploaderRestic {
		pvr.Spec.RepoIdentifier, err = s.resticIdentifier(ctx, pvr.Spec.SourceNamespace)
	}
	return warning, err
}

// clockSlack is how far the clocks of an API server and a controller may be apart.
const clockSlack = 10 * time.Second

// existedBefore reports whether an object was made before this restore began. Its labels do not tell: an update adds them.
func (s *scope) existedBefore(object *unstructured.Unstructured) bool {
	began := s.Restore.Status.StartTimestamp
	return began != nil && object.GetCreationTimestamp().Time.Before(began.Add(-clockSlack))
}

// foreign reports whether an object was not made by this restore. It may have been made after this restore began.
func (s *scope) foreign(object *unstructured.Unstructured) bool {
	return s.existedBefore(object) || object.GetLabels()[velerov1.RestoreNameLabel] != label.GetValidName(s.Restore.Name)
}

// podVolumeRestore is the object as Velero makes it, without what the cluster must be asked for.
func (s *scope) podVolumeRestore(sourceNamespace string, pod *unstructured.Unstructured, snapshot podSnapshot) *velerov1.PodVolumeRestore {
	return &velerov1.PodVolumeRestore{
		TypeMeta: metav1.TypeMeta{APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "PodVolumeRestore"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Restore.Namespace, GenerateName: s.Restore.Name + "-",
			// The agent tells the init container the UID of the owner, see waitContainer.
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "Restore", Name: s.Restore.Name, UID: s.Restore.UID, Controller: new(true),
			}},
			Labels: map[string]string{
				velerov1.RestoreNameLabel: label.GetValidName(s.Restore.Name),
				velerov1.RestoreUIDLabel:  string(s.Restore.UID),
				velerov1.PodUIDLabel:      string(pod.GetUID()),
			},
		},
		Spec: velerov1.PodVolumeRestoreSpec{
			Pod:    corev1.ObjectReference{Kind: "Pod", Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: pod.GetUID()},
			Volume: snapshot.volume, SnapshotID: snapshot.id, SnapshotSize: snapshot.bytes, UploaderType: snapshot.uploaderType,
			BackupStorageLocation: s.Backup.Spec.StorageLocation, SourceNamespace: sourceNamespace,
			UploaderSettings: uploaderSettings(s.Restore.Spec.UploaderConfig),
		},
	}
}

// uploaderSettings spells a Restore's settings as node agents read them.
func uploaderSettings(config *velerov1.UploaderConfigForRestore) map[string]string {
	if config == nil {
		return nil
	}
	sparse := config.WriteSparseFiles != nil && *config.WriteSparseFiles
	settings := map[string]string{"WriteSparseFiles": strconv.FormatBool(sparse)}
	if config.ParallelFilesDownload > 0 {
		settings["ParallelFilesDownload"] = strconv.Itoa(config.ParallelFilesDownload)
	}
	return settings
}

// resticIdentifier returns where a Velero server says that the repository of a namespace is. Without a server it is empty, and
// our agent derives it from the location.
func (s *scope) resticIdentifier(ctx context.Context, sourceNamespace string) (string, error) {
	found, err := s.listObjects(ctx, backupRepositories, s.Restore.Namespace, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(recorded.ResticLabels(sourceNamespace, s.Backup.Spec.StorageLocation)).String(),
	})
	if apierrors.IsNotFound(err) {
		return "", nil // no such CRD
	}
	if err != nil {
		return "", fmt.Errorf("look for its BackupRepository: %w", err)
	}
	var known velerov1.BackupRepositoryList
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.UnstructuredContent(), &known); err != nil {
		return "", fmt.Errorf("read its BackupRepository: %w", err)
	}
	return recorded.ResticIdentifier(known.Items), nil
}

// findPodVolumeRestore returns the one that was made for the same volume, nil if there is none.
func (s *scope) findPodVolumeRestore(ctx context.Context, wanted *velerov1.PodVolumeRestore) (*velerov1.PodVolumeRestore, error) {
	list, err := s.listObjects(ctx, podVolumeRestores, wanted.Namespace, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(labels.Set{
			velerov1.RestoreUIDLabel: wanted.Labels[velerov1.RestoreUIDLabel], velerov1.PodUIDLabel: wanted.Labels[velerov1.PodUIDLabel],
		}).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("look for its PodVolumeRestore: %w", err)
	}
	for i := range list.Items {
		if textOf(list.Items[i].Object, "spec", "volume") == wanted.Spec.Volume {
			return decodePodVolumeRestore(&list.Items[i])
		}
	}
	return nil, nil //nolint:nilnil // documented
}

// createPodVolumeRestore creates it, under another name if the one that the API server chose was taken.
func (s *scope) createPodVolumeRestore(ctx context.Context, pvr *velerov1.PodVolumeRestore) (*velerov1.PodVolumeRestore, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(pvr)
	if err != nil {
		return nil, err
	}
	var created *unstructured.Unstructured
	err = retry.OnError(retry.DefaultRetry, apierrors.IsAlreadyExists, func() error {
		created, err = s.engine.cluster.Resource(podVolumeRestores).Namespace(pvr.Namespace).Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("create its PodVolumeRestore: %w", err)
	}
	return decodePodVolumeRestore(created)
}

func decodePodVolumeRestore(object *unstructured.Unstructured) (*velerov1.PodVolumeRestore, error) {
	pvr := &velerov1.PodVolumeRestore{}
	return pvr, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pvr)
}
