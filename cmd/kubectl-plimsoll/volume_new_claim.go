package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// newClaim says which PersistentVolumeClaim a restore creates for itself.
type newClaim struct {
	name  string // NAMESPACE/NAME; empty: none
	class string // empty: that of the claim that was backed up, or the cluster's default
	size  string // empty: that of the claim that was backed up, or what the snapshot needs
}

// minClaimSize is the least that a new claim requests by default.
const minClaimSize = 1 << 30

func (n *newClaim) addFlags(f *pflag.FlagSet) {
	f.StringVar(&n.name, "to-claim", "", "create this PersistentVolumeClaim, NAMESPACE/NAME, and restore into it")
	f.StringVar(&n.class, "storage-class", "", "with --to-claim: its StorageClass (default: that of the claim that was backed up, or else the cluster's default)")
	f.StringVar(&n.size, "size", "", "with --to-claim: the storage that it requests, such as 50Gi (default: that of the claim that was backed up, or else the volume's files and a quarter, and at least 1Gi)")
}

func (n *newClaim) validate() error {
	if n.name == "" && (n.class != "" || n.size != "") {
		return program.Misused(errors.New("--storage-class and --size need --to-claim"))
	}
	return checkSize("--size", n.size)
}

// checkSize returns an error of usage for a size that is none.
func checkSize(flag, size string) error {
	if size == "" {
		return nil
	}
	if q, err := resource.ParseQuantity(size); err != nil || q.Sign() <= 0 {
		return program.Misused(fmt.Errorf("%s=%s is not a size such as 50Gi", flag, size))
	}
	return nil
}

// plan returns the claim as it is to be created. Its errors say why it cannot be.
func (n *newClaim) plan(ctx context.Context, v *volumes, from snapshot) (*corev1.PersistentVolumeClaim, error) {
	namespace, name, err := parseNamespaced(n.name)
	if err != nil {
		return nil, err
	}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	switch err := v.api.Get(ctx, client.ObjectKeyFromObject(claim), &corev1.PersistentVolumeClaim{}); {
	case err == nil:
		return nil, errors.New("it exists already: restore into it with --into-claim, or choose another name")
	case !apierrors.IsNotFound(err):
		return nil, fmt.Errorf("get it: %w", err)
	}
	source := v.sourceClaim(ctx, from)
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if n.class == "" && source != nil {
		claim.Spec.AccessModes = writable(source.Spec.AccessModes)
	}
	if claim.Spec.StorageClassName, err = n.storageClass(ctx, v, source); err != nil {
		return nil, err
	}
	storage, err := n.storage(from, source)
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: storage}
	return claim, err
}

// sourceClaim reads the claim that was backed up; nil if it is not there any more, or may not be read.
func (v *volumes) sourceClaim(ctx context.Context, from snapshot) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{}
	if from.claim == "" || v.api.Get(ctx, client.ObjectKey{Namespace: from.namespace, Name: from.claim}, claim) != nil {
		return nil
	}
	return claim
}

// writable returns the access modes without those that only read.
func writable(modes []corev1.PersistentVolumeAccessMode) []corev1.PersistentVolumeAccessMode {
	modes = slices.DeleteFunc(slices.Clone(modes), func(m corev1.PersistentVolumeAccessMode) bool { return m == corev1.ReadOnlyMany })
	if len(modes) == 0 {
		return []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return modes
}

// storageClass returns the StorageClass of the claim; nil stands for the cluster's default.
func (n *newClaim) storageClass(ctx context.Context, v *volumes, source *corev1.PersistentVolumeClaim) (*string, error) {
	if n.class != "" {
		_, err := storageClass(ctx, v.api, n.class)
		return &n.class, err
	}
	if source != nil && source.Spec.StorageClassName != nil && *source.Spec.StorageClassName != "" {
		if _, err := storageClass(ctx, v.api, *source.Spec.StorageClassName); err != nil {
			return nil, fmt.Errorf("%w, which the claim that was backed up has: set --storage-class", err)
		}
		return source.Spec.StorageClassName, nil
	}
	return nil, v.checkDefaultClass(ctx)
}

// storageClass reads a StorageClass; nil without an error if it may not be read.
func storageClass(ctx context.Context, api client.Reader, name string) (*storagev1.StorageClass, error) {
	class := &storagev1.StorageClass{}
	err := api.Get(ctx, client.ObjectKey{Name: name}, class)
	switch {
	case apierrors.IsForbidden(err):
		return nil, nil //nolint:nilnil // documented
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("the cluster has no StorageClass %q", name)
	case err != nil:
		return nil, fmt.Errorf("get StorageClass %s: %w", name, err)
	}
	return class, nil
}

// checkDefaultClass returns an error if no StorageClass is the default: a claim without a class would never be bound. Who may not list
// StorageClasses is not held back.
func (v *volumes) checkDefaultClass(ctx context.Context) error {
	var list storagev1.StorageClassList
	err := v.api.List(ctx, &list)
	switch {
	case apierrors.IsForbidden(err):
		return nil
	case err != nil:
		return fmt.Errorf("list StorageClasses: %w", err)
	case !slices.ContainsFunc(list.Items, isDefaultClass):
		return errors.New("no StorageClass of the cluster is the default: set --storage-class")
	}
	return nil
}

func isDefaultClass(class storagev1.StorageClass) bool {
	return class.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" || class.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
}

// storage returns what the claim requests.
func (n *newClaim) storage(from snapshot, source *corev1.PersistentVolumeClaim) (resource.Quantity, error) {
	if n.size != "" {
		return resource.MustParse(n.size), nil // validated
	}
	if source != nil {
		requested, has := source.Spec.Resources.Requests[corev1.ResourceStorage], source.Status.Capacity[corev1.ResourceStorage]
		if has.Cmp(requested) > 0 { // a static volume can be larger than its claim has asked for
			requested = has
		}
		if requested.Value() > from.bytes {
			return requested, nil
		}
	}
	if from.bytes == 0 {
		return resource.Quantity{}, errors.New("the size of the snapshot is not known, and the claim that was backed up is not there: set --size")
	}
	return *resource.NewQuantity(max(from.bytes+from.bytes/4, minClaimSize), resource.BinarySI), nil
}

// create makes the claim, and says what it is.
func (n *newClaim) create(cmd *cobra.Command, v *volumes, claim *corev1.PersistentVolumeClaim) error {
	if err := v.client.Create(cmd.Context(), claim); err != nil {
		return cannot("create PersistentVolumeClaim %s: %w", describe.Clean(n.name), err)
	}
	class := "the default StorageClass"
	if claim.Spec.StorageClassName != nil {
		class = "StorageClass " + cmp.Or(*claim.Spec.StorageClassName, `""`)
	}
	storage := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	fmt.Fprintf(cmd.ErrOrStderr(), "persistentvolumeclaim/%s created in namespace %s: %s, %s\n", claim.Name, claim.Namespace, storage.String(), describe.Clean(class))
	return nil
}

// sayLeft names the claim of a restore that has not completed, and how to delete it.
func (n *newClaim) sayLeft(cmd *cobra.Command, claim *corev1.PersistentVolumeClaim, goesOn bool) {
	what := "is left, and may have a part of the files"
	if goesOn {
		what = "is left, and the restore into it continues"
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "persistentvolumeclaim/%s %s. To delete it: kubectl -n %s delete persistentvolumeclaim %s\n", claim.Name, what, claim.Namespace, claim.Name)
}
