package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/label"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

type volumeRestore struct {
	output
	waitOptions
	target          podVolume
	from            string
	location        string
	uploader        string
	sourceNamespace string
	claim           string   // NAMESPACE/NAME; empty: into the target
	create          newClaim // is that claim, if it is to be created
	sparse          bool
	paths           v1alpha1.RestorePaths
	overwrite       string
	helper          helper
}

func volumeRestoreCommand(c *connection) *cobra.Command {
	var o volumeRestore
	cmd := &cobra.Command{
		Use:   "restore (NAMESPACE/POD VOLUME | --into-claim NAMESPACE/CLAIM | --to-claim NAMESPACE/CLAIM) --from BACKUP|SNAPSHOT|latest",
		Short: "Restore a volume",
		Long: `Restore a volume from a PodVolumeBackup or a snapshot. The command creates a PodVolumeRestore for the node agent; no server is
needed. Files in the volume that are not in the snapshot stay. --from latest uses the newest completed PodVolumeBackup of this
volume, and prints its name.

NAMESPACE/POD is a pod that waits in its init container restore-wait, see docs/standalone.md.

--into-claim restores into a PersistentVolumeClaim that no pod uses: scale down its workload, restore, scale up again. The
command creates a small pod that mounts the claim, and deletes it at the end.

--to-claim does the same with a claim that it creates first, and that stays: to look at a backup, or to have a volume back whose
claim is gone. Its StorageClass and size are those of the claim that was backed up, unless --storage-class and --size say otherwise.

--path restores single files and directories in place of the whole volume, also into a pod that runs. Files that exist stay, unless
--overwrite says otherwise; each file appears whole. The restore fails, before it writes anything, if the snapshot does not have a path.

The command waits until the restore has ended; the exit code is 3 if it is not Completed. If interrupted, the restore continues.`,
		Example: `  kubectl plimsoll volume list shop
  kubectl plimsoll volume restore --into-claim shop/data-database-0 --from database-0-data-x7k2p
  kubectl plimsoll volume restore --into-claim shop/data-database-0 --from latest
  kubectl plimsoll volume restore shop/database-0 data --from database-0-data-x7k2p
  kubectl plimsoll volume restore shop/database-0 data --from latest --path dump.sql --path conf/ --overwrite if-newer
  kubectl plimsoll volume restore --to-claim shop/looked-up --from database-0-data-x7k2p --path dump.sql --size 5Gi
  kubectl plimsoll volume restore --into-claim shop/data-database-0 --from 4f2c1a9b --source-namespace shop --uploader restic`,
		Args: func(_ *cobra.Command, args []string) error { return o.parse(args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			api, err := newVolumes(c)
			if err != nil {
				return err
			}
			return o.run(cmd, api)
		},
	}
	o.addFlag(cmd)
	o.addWaitFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "the name of a PodVolumeBackup, the id of a snapshot, or latest: the newest PodVolumeBackup of this volume")
	f.StringVar(&o.claim, "into-claim", "", "restore into this PersistentVolumeClaim, NAMESPACE/NAME")
	f.StringArrayVar(&o.paths.Paths, "path", nil, "restore only this file or directory, relative to the volume; may be repeated")
	f.StringVar(&o.overwrite, "overwrite", string(v1alpha1.OverwriteNever), "with --path, what happens with files that exist: never (they stay), if-newer (replaced if the backup's has a later time of modification) or always")
	f.BoolVar(&o.sparse, "write-sparse-files", false, "restore blocks of zeros as holes")
	f.StringVar(&o.location, "location", "", "with latest, or a snapshot without a PodVolumeBackup: its BackupStorageLocation (default: the default location)")
	f.StringVar(&o.uploader, "uploader", "", "with latest, or a snapshot without a PodVolumeBackup: restic or kopia (default restic)")
	f.StringVar(&o.sourceNamespace, "source-namespace", "", "with latest, or a snapshot without a PodVolumeBackup: the namespace that was backed up (default: that of the target)")
	o.create.addFlags(f)
	o.helper.addFlags(f)
	return cmd
}

func (o *volumeRestore) parse(args []string) (err error) {
	if o.claim != "" && o.create.name != "" {
		return program.Misused(errors.New("give either --into-claim, for a claim that exists, or --to-claim"))
	}
	o.claim = cmp.Or(o.claim, o.create.name)
	if o.claim == "" {
		o.target, err = parsePodVolume(args)
		return err
	}
	if len(args) > 0 {
		return program.Misused(errors.New("give either NAMESPACE/POD VOLUME or --into-claim or --to-claim"))
	}
	o.target.namespace, _, err = parseNamespaced(o.claim)
	return err
}

func (o *volumeRestore) validate() error {
	if err := o.output.validate(); err != nil {
		return err
	}
	if o.from == "" {
		return program.Misused(errors.New("--from is missing; 'kubectl plimsoll volume list' lists the backups"))
	}
	if o.uploader != "" {
		if err := checkUploader(o.uploader); err != nil {
			return err
		}
	}
	if err := errors.Join(o.validatePaths(), o.create.validate()); err != nil {
		return err
	}
	return o.waitOptions.validate()
}

func (o *volumeRestore) validatePaths() error {
	if len(o.paths.Paths) == 0 {
		if o.overwrite != string(v1alpha1.OverwriteNever) {
			return program.Misused(errors.New("--overwrite needs --path: without it the whole volume is restored, over what is there"))
		}
		return nil
	}
	o.paths.Overwrite = v1alpha1.Overwrite(o.overwrite)
	paths, err := o.paths.Clean()
	if err != nil {
		return program.Misused(fmt.Errorf("--path: %w", err))
	}
	o.paths = paths
	return nil
}

func (o *volumeRestore) run(cmd *cobra.Command, v *volumes) error {
	ctx := cmd.Context()
	from, err := o.snapshot(ctx, v)
	if err != nil {
		return cannot("restore from %s: %w", describe.Clean(o.from), err)
	}
	if from.remark != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), describe.Clean(from.remark))
	}
	for _, warning := range from.warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), warning)
	}
	if o.claim != "" {
		return o.intoClaim(cmd, v, from)
	}
	pvr, err := o.prepare(ctx, v, from)
	if err != nil {
		return cannot("restore %s: %w", o.target, err)
	}
	if err := v.client.Create(ctx, pvr); err != nil {
		return fmt.Errorf("create the PodVolumeRestore: %w", err)
	}
	o.announce(cmd, o.format, "podvolumerestore", pvr.Name)
	if o.noWait {
		return o.report(cmd, describe.OfPodVolumeRestore(pvr))
	}
	ended, err := o.follow(cmd, v, pvr)
	if reportErr := o.report(cmd, ended); err == nil {
		err = reportErr
	}
	return err
}

// report prints the result of the restore.
func (o *volumeRestore) report(cmd *cobra.Command, restored describe.Volume) error {
	return o.print(cmd.OutOrStdout(), restored, func(w io.Writer) error {
		if restored.Phase != string(velerov1.PodVolumeRestorePhaseCompleted) {
			return nil // the error has the result, or the command did not wait
		}
		_, err := fmt.Fprintf(w, "Completed: %s restored\n", describe.Bytes(restored.Progress.BytesDone))
		if restored.Message != "" {
			fmt.Fprintln(w, describe.Clean(restored.Message))
		}
		return err
	})
}

// prepare makes the PodVolumeRestore as a Velero server does (docs/contracts/velero-node-agent.md 2.2), for a pod that waits.
func (o *volumeRestore) prepare(ctx context.Context, v *volumes, from snapshot) (*velerov1.PodVolumeRestore, error) {
	pod, vol, err := v.podOf(ctx, o.target)
	if err != nil {
		return nil, err
	}
	if len(o.paths.Paths) > 0 && !waitsInInit(pod) {
		return o.prepareForRunning(ctx, v, pod, vol, from)
	}
	uid, err := waitsFor(pod, vol)
	if err != nil {
		return nil, err
	}
	restore, err := v.restoreOf(ctx, uid)
	if err != nil {
		return nil, err
	}
	if err := v.ensureNoOther(ctx, pod, vol.Name); err != nil {
		return nil, err
	}
	pvr := o.newPodVolumeRestore(v.namespace, referenceTo(pod), vol.Name, from)
	pvr.OwnerReferences = []metav1.OwnerReference{{ // the agent writes the UID of the owner into the done file
		APIVersion: velerov1.SchemeGroupVersion.String(), Kind: describe.KindRestore, Name: restore.Name, UID: restore.UID, Controller: new(true),
	}}
	pvr.Labels[velerov1.RestoreNameLabel], pvr.Labels[velerov1.RestoreUIDLabel] = label.GetValidName(restore.Name), string(restore.UID)
	pvr.Labels[velerov1.PodUIDLabel] = string(pod.UID)
	return pvr, v.labelClaim(ctx, pvr, pod, vol)
}

// waitsInInit reports whether the pod has an init container that holds it back until its volumes are restored.
func waitsInInit(pod *corev1.Pod) bool {
	return pod.Status.Phase != corev1.PodRunning && slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == v1alpha1.ContainerRestoreWait })
}

// prepareForRunning makes the PodVolumeRestore of paths for a pod that runs. It belongs to no Restore.
func (o *volumeRestore) prepareForRunning(ctx context.Context, v *volumes, pod *corev1.Pod, vol *corev1.Volume, from snapshot) (*velerov1.PodVolumeRestore, error) {
	switch {
	case pod.DeletionTimestamp != nil:
		return nil, errors.New("the pod is being deleted")
	case pod.Status.Phase != corev1.PodRunning:
		return nil, fmt.Errorf("the pod is %s: paths are restored into a pod that runs, or with --into-claim into a claim that no pod uses", cmp.Or(string(pod.Status.Phase), "not started"))
	}
	if err := v.ensureNoOther(ctx, pod, vol.Name); err != nil {
		return nil, err
	}
	pvr := o.newPodVolumeRestore(v.namespace, referenceTo(pod), vol.Name, from)
	pvr.Labels[velerov1.PodUIDLabel] = string(pod.UID)
	return pvr, v.labelClaim(ctx, pvr, pod, vol)
}

func (o *volumeRestore) newPodVolumeRestore(namespace string, pod corev1.ObjectReference, volume string, from snapshot) *velerov1.PodVolumeRestore {
	pvr := &velerov1.PodVolumeRestore{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: pod.Name + "-" + volume + "-", Labels: map[string]string{}},
		Spec: velerov1.PodVolumeRestoreSpec{
			Pod: pod, Volume: volume, SnapshotID: from.id, SnapshotSize: from.bytes, UploaderType: from.uploader,
			BackupStorageLocation: from.location, SourceNamespace: from.namespace, RepoIdentifier: from.repositoryID,
		},
	}
	if o.sparse {
		pvr.Spec.UploaderSettings = map[string]string{"WriteSparseFiles": "true"} // as Velero spells it
	}
	if len(o.paths.Paths) > 0 {
		document, _ := json.Marshal(o.paths) // it is made of strings
		pvr.Annotations = map[string]string{v1alpha1.AnnotationRestorePaths: string(document)}
		pvr.Spec.SnapshotID, pvr.Spec.SnapshotSize = v1alpha1.SnapshotIDPathsPrefix+from.id, 0
	}
	return pvr
}

func (v *volumes) labelClaim(ctx context.Context, pvr *velerov1.PodVolumeRestore, pod *corev1.Pod, vol *corev1.Volume) error {
	if vol.PersistentVolumeClaim == nil {
		return nil
	}
	var claim corev1.PersistentVolumeClaim
	if err := v.api.Get(ctx, client.ObjectKey{Namespace: pod.Namespace, Name: vol.PersistentVolumeClaim.ClaimName}, &claim); err != nil {
		return fmt.Errorf("get PersistentVolumeClaim %s/%s: %w", pod.Namespace, vol.PersistentVolumeClaim.ClaimName, err)
	}
	pvr.Labels[velerov1.PVCUIDLabel] = string(claim.UID)
	return nil
}

// waitsFor returns the UID of the Restore that a pod waits for in its init container.
func waitsFor(pod *corev1.Pod, vol *corev1.Volume) (types.UID, error) {
	hint := "see docs/standalone.md"
	if vol.PersistentVolumeClaim != nil {
		hint = fmt.Sprintf("scale down its workload, and restore with --into-claim %s/%s", pod.Namespace, vol.PersistentVolumeClaim.ClaimName)
	}
	i := slices.IndexFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == v1alpha1.ContainerRestoreWait })
	if i < 0 {
		return "", fmt.Errorf("the pod has no init container %s, so it does not wait for its volumes: %s", v1alpha1.ContainerRestoreWait, hint)
	}
	c := &pod.Spec.InitContainers[i]
	switch {
	case !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == vol.Name }):
		return "", fmt.Errorf("the pod's init container %s does not mount the volume, so it would not wait for it", v1alpha1.ContainerRestoreWait)
	case len(c.Args) == 0:
		return "", fmt.Errorf("the pod's init container %s has no argument with the UID of a Restore", v1alpha1.ContainerRestoreWait)
	case pod.DeletionTimestamp != nil:
		return "", errors.New("the pod is being deleted")
	case pod.Status.Phase != corev1.PodPending && pod.Status.Phase != "":
		return "", fmt.Errorf("the pod no longer waits for its volumes: it is %s; %s", pod.Status.Phase, hint)
	}
	for j := range pod.Status.InitContainerStatuses {
		if s := &pod.Status.InitContainerStatuses[j]; s.Name == v1alpha1.ContainerRestoreWait && s.State.Terminated != nil && s.State.Terminated.ExitCode == 0 {
			return "", fmt.Errorf("the pod's init container %s has already ended, and the pod uses its volumes; %s", v1alpha1.ContainerRestoreWait, hint)
		}
	}
	return types.UID(c.Args[len(c.Args)-1]), nil
}

// restoreOf finds the Restore of a UID. It must exist, because Kubernetes deletes objects whose owner does not.
func (v *volumes) restoreOf(ctx context.Context, uid types.UID) (*velerov1.Restore, error) {
	var list velerov1.RestoreList
	if err := v.api.List(ctx, &list, client.InNamespace(v.namespace)); err != nil {
		return nil, fmt.Errorf("list Restores: %w", err)
	}
	for i := range list.Items {
		if list.Items[i].UID == uid {
			return &list.Items[i], nil
		}
	}
	return nil, fmt.Errorf("the pod waits for a Restore with the UID %q, and namespace %s has none: see docs/standalone.md, or use --into-claim", uid, v.namespace)
}

// ensureNoOther returns an error if another PodVolumeRestore writes into the volume.
func (v *volumes) ensureNoOther(ctx context.Context, pod *corev1.Pod, volume string) error {
	var list velerov1.PodVolumeRestoreList
	if err := v.api.List(ctx, &list, client.InNamespace(v.namespace)); err != nil {
		return fmt.Errorf("list PodVolumeRestores: %w", err)
	}
	for i := range list.Items {
		r := describe.OfPodVolumeRestore(&list.Items[i])
		if !r.Ended() && r.PodNamespace == pod.Namespace && r.Pod == pod.Name && r.Volume == volume {
			return fmt.Errorf("PodVolumeRestore %s already restores into it", r.Name)
		}
	}
	return nil
}
