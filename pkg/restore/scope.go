package restore

import (
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// podKey names a pod in the backup.
type podKey struct{ namespace, name string }

// scope is what one restore is about: its input, what that selects, and where it goes. Actions read it.
type scope struct {
	Input
	engine     *Engine
	volumes    *volumeRecords
	podVolumes map[podKey]map[string]*velerov1.PodVolumeBackup // see podVolumeBackups
	notStored  map[podKey][]*velerov1.PodVolumeBackup          // the records of volumes without a snapshot
	selection  *selection                                      // nil takes everything
	wait       waitSettings
	plugins    map[key]string // of others than Velero, that have worked on items; see foreignPlugins
	warnings   []string       // about the settings of the restore
}

func newScope(e *Engine, input Input) *scope {
	input.PodVolumeBackups = addListedBackups(&input)
	s := &scope{Input: input, engine: e, volumes: newVolumeRecords(&input), podVolumes: map[podKey]map[string]*velerov1.PodVolumeBackup{}, notStored: map[podKey][]*velerov1.PodVolumeBackup{}}
	s.plugins = foreignPlugins(input.Operations)
	s.wait, s.warnings = parseWaitSettings(input.WaitContainer, e.config.HelperImage)
	for i := range input.PodVolumeBackups {
		record := &input.PodVolumeBackups[i]
		pod := podKey{record.Spec.Pod.Namespace, record.Spec.Pod.Name}
		if record.Status.SnapshotID == "" {
			s.notStored[pod] = append(s.notStored[pod], record)
			continue
		}
		if s.podVolumes[pod] == nil {
			s.podVolumes[pod] = map[string]*velerov1.PodVolumeBackup{}
		}
		s.podVolumes[pod][record.Spec.Volume] = record
	}
	return s
}

// onePhase reports whether the items are collected while they are restored.
func (s *scope) onePhase() bool {
	return s.Restore.Annotations[v1alpha1.AnnotationProgressMode] == v1alpha1.ProgressModeOnePhase
}

// targetNamespace is where items of a namespace of the backup go.
func (s *scope) targetNamespace(original string) string {
	if mapped, ok := s.Restore.Spec.NamespaceMapping[original]; ok {
		return mapped
	}
	return original
}

// podVolumeBackups returns the records of a pod's volumes that have a snapshot, by volume name. Namespace and pod are those
// of the backup.
func (s *scope) podVolumeBackups(namespace, pod string) map[string]*velerov1.PodVolumeBackup {
	return s.podVolumes[podKey{namespace, pod}]
}
