package restore

import (
	"slices"

	"github.com/vmware-tanzu/velero/pkg/itemoperation"
)

// ownPlugins are the backup item actions of Velero itself that leave operations. What they need at a restore is done here, or
// said of each claim.
var ownPlugins = []string{"velero.io/csi-pvc-backupper", "velero.io/csi-volumesnapshot-backupper"}

// foreignPlugins returns the plugins that have worked on items, as far as the backup has recorded it: those that worked on beside
// the backup. Others leave no record, whatever they changed.
func foreignPlugins(operations []itemoperation.BackupOperation) map[key]string {
	plugins := map[key]string{}
	for i := range operations {
		spec := &operations[i].Spec
		if !slices.Contains(ownPlugins, spec.BackupItemAction) {
			item := spec.ResourceIdentifier
			plugins[key{item.GroupResource, item.Namespace, item.Name}] = spec.BackupItemAction
		}
	}
	return plugins
}

// warnOfPlugin warns that an item may need a plugin that is not run.
func (s *scope) warnOfPlugin(i *item) {
	if plugin, ok := s.plugins[i.key]; ok {
		i.warn("plugin %q worked on it during the backup, and Plimsoll runs no plugins: what it would do at a restore is not done", plugin)
	}
}
