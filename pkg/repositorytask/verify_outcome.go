package repositorytask

import (
	"fmt"
	"strings"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// summary counts the results of the volumes.
type summary struct {
	verified, mismatched, failed, skipped int
	restored                              int                              // of the verified: into a scratch volume
	sampled                               []*v1alpha1.RepositoryTaskVolume // whose files and bytes are not in those that follow
	postponed                             int32
	files, bytes, absent                  int64
	reason                                v1alpha1.Reason
	example                               *v1alpha1.RepositoryTaskVolume // the worst one
	note                                  string
}

func summarize(status *v1alpha1.RepositoryTaskStatus) summary {
	s := summary{postponed: status.Postponed}
	for i := range status.Volumes {
		v := &status.Volumes[i]
		s.absent += v.Absent
		if v.Result != v1alpha1.VolumeSampled {
			s.files, s.bytes = s.files+v.Files, s.bytes+v.Bytes
		}
		switch v.Result {
		case v1alpha1.VolumeVerified:
			s.verified++
			if v.StorageClassName != "" {
				s.restored++
			}
		case v1alpha1.VolumeSkipped:
			s.skipped++
		case v1alpha1.VolumeMismatched:
			if s.mismatched++; s.mismatched == 1 {
				s.reason, s.example = v.Reason, v
			}
		case v1alpha1.VolumeFailed, v1alpha1.VolumePending:
			if s.failed++; s.example == nil {
				s.reason, s.example = v.Reason, v
			}
		case v1alpha1.VolumeSampled:
			s.sampled = append(s.sampled, v)
		case v1alpha1.VolumePostponed: // counted in the status
		case v1alpha1.VolumeMigrated, v1alpha1.VolumePlanned: // of migrations only
		}
	}
	return s
}

// verifyOutcome sums up a task that verifies.
func verifyOutcome(status *v1alpha1.RepositoryTaskStatus, note string) outcome {
	s := summarize(status)
	s.note = note
	if s.mismatched+s.failed > 0 {
		return outcome{false, s.reason, s.String()}
	}
	if len(s.sampled) > 0 {
		return outcome{true, v1alpha1.ReasonSampled, s.String()}
	}
	if s.verified == 0 && s.skipped > 0 {
		return outcome{true, v1alpha1.ReasonEmptyVolume, s.String()}
	}
	if s.verified == 0 {
		return outcome{false, v1alpha1.ReasonNoPodVolumes, s.String()}
	}
	return outcome{true, v1alpha1.ReasonVerified, s.String()}
}

// sampledText says what was read of volumes, as in "2 pod volumes sampled: part 7 of 20, 1.2 GiB compared".
func sampledText(volumes []*v1alpha1.RepositoryTaskVolume) string {
	var bytes int64
	first := volumes[0]
	part := fmt.Sprintf("part %d", first.SamplePart)
	for _, v := range volumes {
		bytes += v.Bytes
		if v.SamplePart != first.SamplePart {
			part = "a part"
		}
	}
	return fmt.Sprintf("%s sampled: %s of %d, %s compared", text.Count(len(volumes), "pod volume", "pod volumes"), part, first.SampleParts, text.Bytes(bytes))
}

// mismatchedAre says what volumes are that do not match: of a backup, or of what was restored from it.
func (s *summary) mismatchedAre() string {
	if s.reason == v1alpha1.ReasonRestoreMismatch {
		return "not the same after a restore"
	}
	return "damaged"
}

// String says what was found.
func (s *summary) String() string {
	var said strings.Builder
	if s.verified+len(s.sampled)+s.mismatched+s.failed == 0 && s.skipped > 0 {
		said.WriteString("nothing was compared")
	} else if s.verified > 0 || len(s.sampled) == 0 {
		fmt.Fprintf(&said, "%s verified: %s, %s compared", text.Count(s.verified, "pod volume", "pod volumes"), text.Count(s.files, "file", "files"), text.Bytes(s.bytes))
	}
	if len(s.sampled) > 0 {
		if said.Len() > 0 {
			said.WriteString("; ")
		}
		said.WriteString(sampledText(s.sampled))
	}
	for _, other := range []struct {
		n    int
		what string
	}{{s.restored, "restored into a scratch volume"}, {s.mismatched, s.mismatchedAre()}, {s.failed, "not verified"}, {s.skipped, "empty"}} {
		if other.n > 0 {
			fmt.Fprintf(&said, "; %d %s", other.n, other.what)
		}
	}
	if s.absent > 0 {
		fmt.Fprintf(&said, "; %s, because they could not be read when it was made", text.Count(s.absent, "file is not in its backup", "files are not in their backups"))
	}
	if s.postponed > 0 {
		fmt.Fprintf(&said, "; %s left to later tasks", text.Count(int64(s.postponed), "volume is", "volumes are"))
	}
	if s.note != "" {
		said.WriteString(". " + s.note)
	}
	if v := s.example; v != nil {
		fmt.Fprintf(&said, ". %s/%s:%s: %s", v.Namespace, v.Pod, v.Volume, v.Message)
	}
	return text.Line(said.String(), maxMessage)
}
