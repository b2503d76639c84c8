package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// reference names an object on the command line.
type reference struct{ kind, name string }

// kindNames are how people call the kinds, in small letters, as kubectl takes them.
var kindNames = map[string]string{
	"backup": describe.KindBackup, "backups": describe.KindBackup,
	"restore": describe.KindRestore, "restores": describe.KindRestore,
	"podvolumebackup": describe.KindPodVolumeBackup, "podvolumebackups": describe.KindPodVolumeBackup, "pvb": describe.KindPodVolumeBackup,
	"podvolumerestore": describe.KindPodVolumeRestore, "podvolumerestores": describe.KindPodVolumeRestore, "pvr": describe.KindPodVolumeRestore,
	"volumepluginbackup": describe.KindVolumePluginBackup, "volumepluginbackups": describe.KindVolumePluginBackup, "vpb": describe.KindVolumePluginBackup,
	"repositorytask": describe.KindRepositoryTask, "repositorytasks": describe.KindRepositoryTask, "rtask": describe.KindRepositoryTask,
	"volumepluginrestore": describe.KindVolumePluginRestore, "volumepluginrestores": describe.KindVolumePluginRestore, "vpr": describe.KindVolumePluginRestore,
}

// groupOf is the API that has a kind.
func groupOf(kind string) schema.GroupVersion {
	if kind == describe.KindVolumePluginBackup || kind == describe.KindVolumePluginRestore || kind == describe.KindRepositoryTask {
		return v1alpha1.GroupVersion
	}
	return velerov1.SchemeGroupVersion
}

// newObject returns an empty one of a kind that kindNames has.
func newObject(kind string) client.Object {
	switch kind {
	case describe.KindBackup:
		return &velerov1.Backup{}
	case describe.KindRestore:
		return &velerov1.Restore{}
	case describe.KindPodVolumeRestore:
		return &velerov1.PodVolumeRestore{}
	case describe.KindVolumePluginBackup:
		return &v1alpha1.VolumePluginBackup{}
	case describe.KindVolumePluginRestore:
		return &v1alpha1.VolumePluginRestore{}
	case describe.KindRepositoryTask:
		return &v1alpha1.RepositoryTask{}
	default:
		return &velerov1.PodVolumeBackup{}
	}
}

// parseReference takes KIND NAME and KIND/NAME, as kubectl does. The error is one of usage.
func parseReference(args []string) (reference, error) {
	if len(args) == 1 {
		if kind, name, ok := strings.Cut(args[0], "/"); ok {
			args = []string{kind, name}
		}
	}
	if len(args) != 2 || args[1] == "" {
		return reference{}, program.Misused(errors.New("name one object: KIND NAME or KIND/NAME"))
	}
	word, group, grouped := strings.Cut(strings.ToLower(args[0]), ".")
	kind, ok := kindNames[word]
	if !ok || grouped && group != groupOf(kind).Group {
		return reference{}, program.Misused(fmt.Errorf("%q is none of backup, restore, podvolumebackup (pvb), podvolumerestore (pvr), "+
			"volumepluginbackup (vpb), volumepluginrestore (vpr) and repositorytask (rtask)", args[0]))
	}
	return reference{kind, args[1]}, nil
}

// objects reads what Velero, its node agents and plugins keep in a namespace.
type objects struct {
	api       client.Reader
	namespace string
}

// get reads an object of the namespace. Its errors say what to do.
func (o objects) get(ctx context.Context, r reference, into client.Object) error {
	err := o.api.Get(ctx, client.ObjectKey{Namespace: o.namespace, Name: r.name}, into)
	switch {
	case apierrors.IsNotFound(err):
		resource := strings.ToLower(r.kind) + "s." + groupOf(r.kind).Group
		return fmt.Errorf("there is no %s %q in namespace %s; 'kubectl -n %s get %s' lists them", r.kind, r.name, o.namespace, o.namespace, resource)
	case meta.IsNoMatchError(err):
		return fmt.Errorf("get %s %s: this cluster does not have the CRDs of %s", r.kind, r.name, groupOf(r.kind).Group)
	case err != nil:
		return fmt.Errorf("get %s %s: %w", r.kind, r.name, err)
	}
	return nil
}

// completeReferences completes KIND NAME, with the names that the cluster has.
func completeReferences(c *connection, kinds ...string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			var names []cobra.Completion
			for _, kind := range kinds {
				names = append(names, strings.ToLower(kind))
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		case 1:
			names, err := c.names(cmd.Context(), kindNames[strings.ToLower(args[0])])
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		default:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// names lists the objects of a kind.
func (c *connection) names(ctx context.Context, kind string) ([]string, error) {
	api, err := c.client()
	if err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(groupOf(kind).WithKind(kind + "List"))
	if err := api.List(ctx, list, client.InNamespace(c.namespace)); err != nil {
		return nil, fmt.Errorf("list %ss: %w", kind, err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}
