package main

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// snapshot is what is restored.
type snapshot struct {
	id           string
	bytes        int64 // 0: not known
	uploader     string
	location     string
	namespace    string // that was backed up: each has its own repository
	claim        string // that was backed up; empty: none, or it is not known
	repositoryID string
	remark       string // what people should know of it: which it is, or why it may not be complete
	warnings     []string
}

// snapshotID is what ids look like: of restic, where the first characters are enough, and of kopia.
var snapshotID = regexp.MustCompile(`^[0-9a-f]{8,64}$`)

// snapshot finds out what --from says: a PodVolumeBackup, or the snapshot of one, or else what the flags say.
func (o *volumeRestore) snapshot(ctx context.Context, v *volumes) (snapshot, error) {
	var s snapshot
	pvb, err := o.backup(ctx, v)
	switch {
	case err != nil:
		return s, err
	case pvb != nil && pvb.Status.SnapshotID == "":
		return s, fmt.Errorf("PodVolumeBackup %s has no snapshot: it is %s: %s", pvb.Name, cmp.Or(string(pvb.Status.Phase), "New"),
			cmp.Or(describe.Clean(pvb.Status.Message), "nothing more is known"))
	case pvb != nil && pvb.Annotations[v1alpha1.AnnotationForgetting] != "":
		return s, fmt.Errorf("the snapshot of PodVolumeBackup %s is being forgotten by a RepositoryTask", pvb.Name)
	case pvb != nil:
		s = snapshot{
			id: pvb.Status.SnapshotID, bytes: pvb.Status.Progress.TotalBytes, uploader: v1alpha1.UploaderName(pvb.Spec.UploaderType),
			location: pvb.Spec.BackupStorageLocation, namespace: pvb.Spec.Pod.Namespace,
			claim: pvb.Annotations[pvcNameAnnotation],
		}
		s.remark = remarkOn(pvb)
		if o.from == latest {
			s.remark = strings.TrimSpace(fmt.Sprintf("The newest is PodVolumeBackup %s, %s old. %s", pvb.Name, describe.Age(time.Now(), ended(pvb)), s.remark))
		}
	case !snapshotID.MatchString(o.from):
		return s, fmt.Errorf("it is neither a PodVolumeBackup in namespace %s nor the id of a snapshot; 'kubectl plimsoll volume list' lists the backups", v.namespace)
	default:
		s = snapshot{id: o.from, uploader: uploaderRestic, namespace: o.target.namespace}
	}
	s.uploader, s.location = cmp.Or(o.uploader, s.uploader), cmp.Or(o.location, s.location)
	s.namespace = cmp.Or(o.sourceNamespace, s.namespace)
	location, err := v.location(ctx, s.location)
	if err != nil {
		return s, err
	}
	s.location = location.Name
	repositories, err := v.repositories(ctx, s.namespace, s.location, s.uploader)
	s.repositoryID, s.warnings = identifier(repositories, s.uploader), statusWarnings(location, repositories)
	return s, err
}

// remarkOn says why a backup may lack files, empty if it does not.
func remarkOn(pvb *velerov1.PodVolumeBackup) string {
	v := describe.OfPodVolumeBackup(pvb)
	switch {
	case pvb.Annotations[v1alpha1.AnnotationDamaged] != "":
		return fmt.Sprintf("PodVolumeBackup %s is damaged, or its repository, as was found at %s: 'kubectl plimsoll repository verify --from %s' says what of it can be restored", v.Name, describe.Clean(pvb.Annotations[v1alpha1.AnnotationDamaged]), v.Name)
	case pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted:
		return fmt.Sprintf("PodVolumeBackup %s is %s, and its snapshot may be incomplete: %s", v.Name, v.Phase, v.Message)
	case v.Progress.Errors > 0:
		return fmt.Sprintf("PodVolumeBackup %s has completed, but it lacks files: %s", v.Name, cmp.Or(v.Message, fmt.Sprintf("%d could not be read", v.Progress.Errors)))
	case v.Message != "":
		return fmt.Sprintf("PodVolumeBackup %s has completed, and says: %s", v.Name, v.Message)
	}
	return ""
}

// latest as --from stands for the newest backup of the volume.
const latest = "latest"

// backup finds the PodVolumeBackup that --from says, by its name or its snapshot; nil: there is none.
func (o *volumeRestore) backup(ctx context.Context, v *volumes) (*velerov1.PodVolumeBackup, error) {
	var list velerov1.PodVolumeBackupList
	if err := v.api.List(ctx, &list, client.InNamespace(v.namespace)); err != nil {
		return nil, fmt.Errorf("list PodVolumeBackups: %w", err)
	}
	if o.from == latest {
		return o.newest(list.Items)
	}
	for _, is := range []func(velerov1.PodVolumeBackup) bool{
		func(b velerov1.PodVolumeBackup) bool { return b.Name == o.from },
		func(b velerov1.PodVolumeBackup) bool { return b.Status.SnapshotID == o.from },
	} {
		if i := slices.IndexFunc(list.Items, is); i >= 0 {
			return &list.Items[i], nil
		}
	}
	return nil, nil //nolint:nilnil // documented
}

// newest finds the newest completed backup of the volume that is restored. It may have no snapshot: then the volume was empty.
func (o *volumeRestore) newest(backups []velerov1.PodVolumeBackup) (*velerov1.PodVolumeBackup, error) {
	backups = slices.DeleteFunc(backups, func(b velerov1.PodVolumeBackup) bool { return !o.matches(&b) })
	if len(backups) == 0 {
		what := o.target.String()
		if o.claim != "" {
			what = "PersistentVolumeClaim " + describe.Clean(o.claim)
		}
		if o.sourceNamespace != "" {
			what += ", from namespace " + describe.Clean(o.sourceNamespace)
		}
		return nil, fmt.Errorf("there is no completed PodVolumeBackup of %s; 'kubectl plimsoll volume list --all' lists the others", what)
	}
	b := slices.MaxFunc(backups, func(a, b velerov1.PodVolumeBackup) int {
		return cmp.Or(ended(&a).Compare(ended(&b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	if b.Annotations[v1alpha1.AnnotationDamaged] != "" {
		return nil, fmt.Errorf("the newest backup is not taken by itself: %s. To restore it all the same, or an older one, name it: --from", remarkOn(&b))
	}
	return &b, nil
}

// ended is when a completed backup ended.
func ended(b *velerov1.PodVolumeBackup) time.Time {
	v := describe.OfPodVolumeBackup(b)
	return v.Completed
}

// matches reports whether a backup is completed, of the volume that is restored, and from the place that the flags select.
func (o *volumeRestore) matches(b *velerov1.PodVolumeBackup) bool {
	pod := &b.Spec.Pod
	switch {
	case b.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted,
		pod.Namespace != cmp.Or(o.sourceNamespace, o.target.namespace),
		o.uploader != "" && o.uploader != v1alpha1.UploaderName(b.Spec.UploaderType),
		o.location != "" && o.location != b.Spec.BackupStorageLocation:
		return false
	case o.claim != "":
		_, claim, _ := strings.Cut(o.claim, "/")
		return b.Annotations[pvcNameAnnotation] == claim
	}
	return pod.Name == o.target.pod && b.Spec.Volume == o.target.volume
}
