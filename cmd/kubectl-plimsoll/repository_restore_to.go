package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// restoreTo says where a verification restores volumes.
type restoreTo struct {
	class string // a StorageClass, or sameClass; empty: nothing is restored
	given bool   // the flag was
	size  string
}

// sameClass stands for the StorageClass of the claims that were backed up.
const sameClass = "same"

func (r *restoreTo) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&r.class, "restore-to", "", "restore each volume into a scratch claim of this StorageClass, compare it, and delete it; same: the class of the claims that were backed up")
	f.StringVar(&r.size, "restore-size", "", "with --restore-to: the storage that each scratch claim requests, such as 50Gi (default: the volume's files and a quarter, and at least 1Gi)")
}

// validate returns an error of usage.
func (r *restoreTo) validate(schedule string) error {
	switch {
	case r.class == "" && r.given: // such as from a variable that is not set: then nothing must look proven
		return program.Misused(errors.New("--restore-to is empty: name a StorageClass, or same"))
	case r.class == "" && r.size != "":
		return program.Misused(errors.New("--restore-size needs --restore-to"))
	case r.class == sameClass && schedule != "":
		return program.Misused(errors.New("--restore-to=same cannot be combined with --schedule: name a StorageClass"))
	}
	return checkSize("--restore-size", r.size)
}

// apply asks for restores in a task, once it is clear that scratch claims of the class do not stay behind.
func (r *restoreTo) apply(ctx context.Context, api client.Reader, task *v1alpha1.RepositoryTask) error {
	if r.class == "" {
		return nil
	}
	target := &v1alpha1.RestoreTarget{StorageClassName: r.class}
	if r.size != "" {
		target.Storage = new(resource.MustParse(r.size)) // validated
	}
	if r.class == sameClass {
		var err error
		if target.StorageClassName, err = classOfClaims(ctx, api, task); err != nil {
			return fmt.Errorf("--restore-to=same: %w", err)
		}
	}
	task.Spec.RestoreTo = target
	return checkClass(ctx, api, target.StorageClassName)
}

// checkClass returns an error for a StorageClass whose volumes would stay. Who may not read StorageClasses is not held back.
func checkClass(ctx context.Context, api client.Reader, name string) error {
	class, err := storageClass(ctx, api, name)
	switch {
	case err != nil || class == nil:
		return err
	case class.ReclaimPolicy != nil && *class.ReclaimPolicy == corev1.PersistentVolumeReclaimRetain:
		return fmt.Errorf("StorageClass %s has reclaimPolicy Retain: every volume that is restored would stay. Name one like it with reclaimPolicy Delete", name)
	}
	return nil
}

// classOfClaims returns the StorageClass of the claims that a task's backups are of. They must be in the cluster, and of one class.
func classOfClaims(ctx context.Context, api client.Reader, task *v1alpha1.RepositoryTask) (string, error) {
	var list velerov1.PodVolumeBackupList
	if err := api.List(ctx, &list, client.InNamespace(task.Namespace)); err != nil {
		return "", fmt.Errorf("list PodVolumeBackups: %w", err)
	}
	backups := list.Items
	if task.Spec.Latest {
		if err := correctSynced(ctx, api, task.Namespace, backups); err != nil {
			return "", err
		}
		backups = proof.Newest(backups, task.Spec.Volume)
	}
	class, of := "", ""
	for i := range backups {
		b := &backups[i]
		if !task.Spec.Latest && !selects(&task.Spec, b) || b.Status.SnapshotID == "" {
			continue
		}
		volume := describe.Clean(b.Spec.Pod.Namespace + "/" + b.Spec.Pod.Name + ":" + b.Spec.Volume)
		found, err := classOfClaim(ctx, api, b)
		switch {
		case err != nil:
			return "", fmt.Errorf("%s: %w; name a StorageClass", volume, err)
		case of != "" && found != class:
			return "", fmt.Errorf("%s is of class %s, and %s of class %s: select volumes of one class with --volume, or name a StorageClass", of, class, volume, found)
		}
		class, of = found, volume
	}
	if of == "" {
		return "", errors.New("no volume with files is selected")
	}
	return class, nil
}

// selects reports whether a task works on a PodVolumeBackup.
func selects(spec *v1alpha1.RepositoryTaskSpec, b *velerov1.PodVolumeBackup) bool {
	if spec.PodVolumeBackup != "" {
		return b.Name == spec.PodVolumeBackup
	}
	return b.Labels[velerov1.BackupNameLabel] == v1alpha1.LabelValue(spec.Backup) && spec.Volume.Selects(&b.Spec.Pod, b.Spec.Volume)
}

func classOfClaim(ctx context.Context, api client.Reader, b *velerov1.PodVolumeBackup) (string, error) {
	name := b.Annotations[pvcNameAnnotation]
	if name == "" {
		return "", errors.New("the volume had no PersistentVolumeClaim")
	}
	var claim corev1.PersistentVolumeClaim
	err := api.Get(ctx, client.ObjectKey{Namespace: b.Spec.Pod.Namespace, Name: name}, &claim)
	switch {
	case err != nil:
		return "", fmt.Errorf("get PersistentVolumeClaim %s: %w", name, err)
	case claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName == "":
		return "", fmt.Errorf("PersistentVolumeClaim %s has no StorageClass", name)
	}
	return *claim.Spec.StorageClassName, nil
}
