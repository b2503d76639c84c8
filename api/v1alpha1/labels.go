package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Labels of VolumePluginBackups and VolumePluginRestores. Their values have gone through LabelValue, so they may be shorter
// than what they stand for: whoever selects by them compares the fields of spec and status, too.
const (
	LabelBackup     = "velero.io/backup-name" // Velero's own, so that one selector finds all that belongs to a backup
	LabelVolume     = "plimsoll.io/volume"    // of backups
	LabelPlugin     = "plimsoll.io/plugin"
	LabelSnapshotID = "plimsoll.io/snapshot-id" // as soon as it is known

	// LabelSynced marks an object that came from a backup storage location, where another cluster wrote it. No plugin
	// writes to it.
	LabelSynced = "plimsoll.io/synced"
)

// Labels that node agents set on PodVolumeBackups and PodVolumeRestores, so that each agent watches its own objects and those that
// no agent has taken. Their values are names of nodes, which have gone through LabelValue. An object without them is in
// the watch of every agent: whoever doubts a label removes it.
const (
	// LabelNode has the node whose agent has taken the object, from that agent's first write to the end.
	LabelNode = "plimsoll.io/node"
	// LabelEndedOn has the node of an object that has ended, empty if it had none. It takes the place of LabelNode.
	LabelEndedOn = "plimsoll.io/ended-on"
)

// LabelDamaged is on a PodVolumeBackup with AnnotationDamaged, with the value "true": so that a node agent finds out without reading all of
// them that a repository is damaged. On a RepositoryTask it goes with AnnotationDamagedRepositories.
const LabelDamaged = "plimsoll.io/damaged"

// hashLength is how many hexadecimal digits of the SHA-256 end a value that was too long.
const hashLength = 6

// LabelValue makes a label's value of any text. What is longer than 63 bytes is cut as Velero does it, to 57 bytes and 6
// digits of its hash; characters that labels cannot have become underscores.
func LabelValue(s string) string {
	clean := strings.Map(func(r rune) rune {
		if isAlphanumeric(r) || r == '-' || r == '_' || r == '.' {
			return r
		}
		return '_'
	}, s)
	if len(clean) > validation.LabelValueMaxLength {
		sum := sha256.Sum256([]byte(s))
		clean = clean[:validation.LabelValueMaxLength-hashLength] + hex.EncodeToString(sum[:])[:hashLength]
	}
	return strings.TrimFunc(clean, func(r rune) bool { return !isAlphanumeric(r) })
}

func isAlphanumeric(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}
