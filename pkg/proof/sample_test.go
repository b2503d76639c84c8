package proof_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/proof"
)

// TestSamples: which part of three is the next one, and what the parts that were read prove.
func TestSamples(t *testing.T) {
	t.Parallel()
	type found struct {
		on, backup int // days of November
		result     v1alpha1.VolumeResult
		part       int32
	}
	const (
		verified, sampled, mismatched, failed = v1alpha1.VolumeVerified, v1alpha1.VolumeSampled, v1alpha1.VolumeMismatched, v1alpha1.VolumeFailed
	)
	entry := func(f found, parts int32) v1alpha1.RepositoryTaskVolume {
		return v1alpha1.RepositoryTaskVolume{
			Namespace: "shop", Pod: "db-0", Volume: "data", BackupStorageLocation: "near", Uploader: "kopia", Result: f.result, SamplePart: f.part, SampleParts: parts,
			BackupTimestamp: new(metav1.NewTime(day(f.backup))), CompletionTimestamp: new(metav1.NewTime(day(f.on))),
		}
	}
	for name, test := range map[string]struct {
		found    []found // in any order
		others   []found // of seven parts
		read     int
		verified int   // a day; 0: never
		backup   int   // to be read next, a day
		next     int32 // its part
	}{
		"none":                           {nil, nil, 0, 0, 1, 1},
		"the first":                      {[]found{{2, 1, sampled, 1}}, nil, 1, 0, 1, 2},
		"two of three":                   {[]found{{3, 2, sampled, 2}, {2, 1, sampled, 1}}, nil, 2, 0, 3, 3},
		"all":                            {[]found{{4, 3, sampled, 3}, {3, 2, sampled, 2}, {2, 1, sampled, 1}}, nil, 3, 1, 4, 1},
		"all, and the first again":       {[]found{{4, 3, sampled, 3}, {3, 2, sampled, 2}, {2, 1, sampled, 1}, {5, 4, sampled, 1}}, nil, 3, 2, 5, 2},
		"no answer is no turn":           {[]found{{2, 1, sampled, 1}, {3, 2, failed, 2}}, nil, 1, 0, 3, 2},
		"damage is a turn, and no proof": {[]found{{2, 1, sampled, 1}, {3, 2, mismatched, 2}}, nil, 1, 0, 3, 3},
		"damage after all":               {[]found{{4, 3, sampled, 3}, {3, 2, sampled, 2}, {2, 1, sampled, 1}, {5, 4, mismatched, 1}}, nil, 2, 0, 5, 2},
		"a whole one":                    {[]found{{2, 1, sampled, 1}, {3, 2, verified, 0}, {4, 3, sampled, 1}}, nil, 3, 3, 4, 2},
		"a damaged whole one":            {[]found{{2, 1, sampled, 1}, {3, 2, sampled, 2}, {4, 3, mismatched, 0}}, nil, 0, 0, 4, 1},
		"an older backup proves nothing": {[]found{{2, 1, sampled, 1}, {4, 3, sampled, 2}, {5, 2, sampled, 3}}, nil, 2, 0, 5, 3},
		"the next of an older backup":    {[]found{{2, 1, sampled, 1}, {4, 3, sampled, 2}, {5, 2, sampled, 2}}, nil, 2, 0, 2, 3},
		"an older backup was read first": {[]found{{5, 1, sampled, 2}, {6, 5, sampled, 1}, {7, 6, sampled, 3}}, nil, 3, 1, 7, 2},
		"other parts":                    {[]found{{5, 4, sampled, 1}}, []found{{2, 1, sampled, 1}, {3, 1, sampled, 2}}, 1, 0, 5, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tasks []v1alpha1.RepositoryTask
			add := func(v v1alpha1.RepositoryTaskVolume) {
				tasks = append(tasks, v1alpha1.RepositoryTask{Status: v1alpha1.RepositoryTaskStatus{Volumes: []v1alpha1.RepositoryTaskVolume{v}}})
			}
			for _, f := range test.found {
				if f.part == 0 {
					add(entry(f, 0))
				} else {
					add(entry(f, 3))
				}
			}
			for _, f := range test.others {
				add(entry(f, 7))
			}
			next := entry(found{backup: test.backup}, 3)
			if got := proof.ResultsOf(tasks).NextPart(&next); got != test.next {
				t.Errorf("the next part is %d, want %d", got, test.next)
			}
			p := proof.Of(tasks)[proof.VolumeIn(&next)]
			var want time.Time
			if test.verified > 0 {
				want = day(test.verified)
			}
			if p.PartsRead != test.read || len(tasks) > 0 && p.Parts != 3 || !p.Verified.Equal(want) {
				t.Errorf("%+v, want %d parts, verified %s", p, test.read, want)
			}
		})
	}
}

// TestSampleClearsNoDamage: what was found damaged may be in another part.
func TestSampleClearsNoDamage(t *testing.T) {
	t.Parallel()
	volume := func(on int, result v1alpha1.VolumeResult, part int32) v1alpha1.RepositoryTaskVolume {
		return v1alpha1.RepositoryTaskVolume{Result: result, SamplePart: part, SampleParts: 2, BackupTimestamp: new(metav1.NewTime(day(1))), CompletionTimestamp: new(metav1.NewTime(day(on)))}
	}
	tasks := []v1alpha1.RepositoryTask{{Status: v1alpha1.RepositoryTaskStatus{Volumes: []v1alpha1.RepositoryTaskVolume{
		volume(2, v1alpha1.VolumeMismatched, 1), volume(3, v1alpha1.VolumeSampled, 2), volume(4, v1alpha1.VolumeSampled, 1),
	}}}}
	if p := proof.Of(tasks)[proof.Volume{Uploader: "restic"}]; !p.Damaged {
		t.Errorf("%+v", p)
	}
}
