package live

import (
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

func operationOf(api client.WithWatch, namespace string, s Selection) *mirror[describe.Operation] {
	m := &mirror[describe.Operation]{
		api: api, what: s.Kind + "s", options: []client.ListOption{client.InNamespace(namespace), client.MatchingFields{"metadata.name": s.Name}},
		list: func() client.ObjectList { return &velerov1.BackupList{} },
		of:   func(o client.Object) describe.Operation { return describe.OfBackup(o.(*velerov1.Backup)) },
	}
	if s.Kind == describe.KindRestore {
		m.list = func() client.ObjectList { return &velerov1.RestoreList{} }
		m.of = func(o client.Object) describe.Operation { return describe.OfRestore(o.(*velerov1.Restore)) }
	}
	return m
}

// volumesOf mirrors the kinds that a selection has volumes of. A task stands for those that it works on.
func volumesOf(api client.WithWatch, namespace string, s Selection) []*mirror[describe.Volume] {
	kind := func(what string, list func() client.ObjectList) *mirror[describe.Volume] {
		return &mirror[describe.Volume]{
			api: api, what: what, list: list, options: []client.ListOption{client.InNamespace(namespace)},
			of: func(o client.Object) describe.Volume { return describe.VolumeOf(o) },
		}
	}
	backups := kind("PodVolumeBackups", func() client.ObjectList { return &velerov1.PodVolumeBackupList{} })
	restores := kind("PodVolumeRestores", func() client.ObjectList { return &velerov1.PodVolumeRestoreList{} })
	pluginBackups := kind("VolumePluginBackups", func() client.ObjectList { return &v1alpha1.VolumePluginBackupList{} })
	pluginRestores := kind("VolumePluginRestores", func() client.ObjectList { return &v1alpha1.VolumePluginRestoreList{} })
	tasks := kind("RepositoryTasks", func() client.ObjectList { return &v1alpha1.RepositoryTaskList{} })
	pluginBackups.optional, pluginRestores.optional, tasks.optional = true, true, true
	switch {
	case s.Name == "":
		return []*mirror[describe.Volume]{backups, restores, pluginBackups, pluginRestores, tasks}
	case s.Kind == describe.KindRestore:
		restores.options = append(restores.options, client.MatchingLabels{velerov1.RestoreNameLabel: v1alpha1.LabelValue(s.Name)})
		return []*mirror[describe.Volume]{restores, pluginRestores}
	default:
		ofBackup := client.MatchingLabels{velerov1.BackupNameLabel: v1alpha1.LabelValue(s.Name)}
		backups.options = append(backups.options, ofBackup)
		pluginBackups.options = append(pluginBackups.options, ofBackup)
		return []*mirror[describe.Volume]{backups, pluginBackups}
	}
}

// podsOf mirrors the node agents' pods, ours and Velero's: the label that both have in all versions.
func podsOf(api client.WithWatch, namespace string) *mirror[agentPod] {
	return &mirror[agentPod]{
		api: api, what: "Pods", list: func() client.ObjectList { return &corev1.PodList{} },
		options:  []client.ListOption{client.InNamespace(namespace), client.MatchingLabels{"name": "node-agent"}},
		of:       func(o client.Object) agentPod { return agentPodOf(o.(*corev1.Pod)) },
		optional: true,
	}
}
