package podvolume

import (
	"fmt"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// TestUnreadable holds what people are told of files that a snapshot lacks.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("directory/", 30)
	for name, test := range map[string]struct {
		result uploader.BackupResult
		want   string
	}{
		"one file":     {uploader.BackupResult{Errors: 1, FailedPaths: []string{"a"}}, "snapshot s was saved without 1 file that could not be read: a"},
		"not named":    {uploader.BackupResult{Errors: 1}, "snapshot s was saved without 1 file that could not be read"},
		"two files":    {uploader.BackupResult{Errors: 2, FailedPaths: []string{"a", "b"}}, "snapshot s was saved without 2 files that could not be read: a, b"},
		"many":         {uploader.BackupResult{Errors: 1200, FailedPaths: []string{"a", "b", "c", "d", "e", "f", "g"}}, "snapshot s was saved without 1200 files that could not be read: a, b, c, d, e and 1195 more"},
		"left out":     {uploader.BackupResult{Excluded: 1, TotalFiles: 3}, "1 file or directory is left out, as .kopiaignore or CACHEDIR.TAG in the volume say"},
		"nothing left": {uploader.BackupResult{Excluded: 2}, "the snapshot has no file: 2 files and directories are left out, as .kopiaignore or CACHEDIR.TAG in the volume say"},
		"attributes": {
			uploader.BackupResult{TotalFiles: 3, LackAttributes: uploader.LackAttributes{Entries: 2, Example: "pgdata/base"}},
			"extended attributes of 2 entries, such as pgdata/base, could not be read, and the snapshot lacks them",
		},
		"a deep one":   {uploader.BackupResult{Errors: 1, FailedPaths: []string{deep + "ibdata1"}}, "snapshot s was saved without 1 file that could not be read: directory/directory/…y/directory/directory/directory/directory/directory/ibdata1"},
		"a long space": {uploader.BackupResult{Errors: 1, FailedPaths: []string{strings.Repeat("a b", 100)}}, "snapshot s was saved without 1 file that could not be read: " + strings.Repeat("a b", 6) + "a …" + strings.Repeat("a b", 20)[1:]},
	} {
		test.result.SnapshotID = "s"
		if got := backupMessage(test.result); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestFoundNoData: a volume of which something was not read, or was to be left out, has data.
func TestFoundNoData(t *testing.T) {
	t.Parallel()
	for result, want := range map[*uploader.BackupResult]bool{
		{}:                             true,
		{SnapshotID: "s"}:              true,
		{TotalBytes: 1}:                false,
		{SnapshotID: "s", Errors: 1}:   false,
		{SnapshotID: "s", Excluded: 1}: true, // else the next nights would push the last backup with data out
	} {
		if got := foundNoData(result); got != want {
			t.Errorf("%+v: got %t", *result, got)
		}
	}
}

// TestNewestSnapshot: a backup is compared with one of its own repository only.
func TestNewestSnapshot(t *testing.T) {
	t.Parallel()
	made := func(uploader, location, snapshot string) velerov1.PodVolumeBackup {
		return velerov1.PodVolumeBackup{
			Spec:   velerov1.PodVolumeBackupSpec{UploaderType: uploader, BackupStorageLocation: location},
			Status: velerov1.PodVolumeBackupStatus{SnapshotID: snapshot},
		}
	}
	earlier := []velerov1.PodVolumeBackup{made("kopia", "a", "1"), made("kopia", "a", "2"), made("restic", "a", "3"), made("kopia", "b", "4")}
	for want, pvb := range map[string]velerov1.PodVolumeBackup{"2": made("kopia", "a", ""), "3": made("restic", "a", ""), "4": made("kopia", "b", ""), "": made("restic", "b", "")} {
		if got := newestSnapshot(earlier, &pvb); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestRefused holds what people are told of attributes that a volume did not take.
func TestRefused(t *testing.T) {
	t.Parallel()
	var result attemptResult
	result.addRefused(uploader.Refused{})
	if result.refused || result.message != "" {
		t.Errorf("of nothing it says %q", result.message)
	}
	result.message = "first"
	result.addRefused(uploader.Refused{Owners: 12, Modes: 1, Times: 2, Attributes: 3, Example: "a"})
	const want = "first; the volume did not take the owner of 12 entries, the mode of 1 entry, the time of 2 entries, the extended attributes of 3 entries, such as a"
	if !result.refused || result.message != want || result.partialReason(Restore) != v1alpha1.ReasonRefusedAttributes {
		t.Errorf("got %+v, want %q", result, want)
	}
}

// TestFailureMessages holds that a failure says what failed and why, with no path that hides both.
func TestFailureMessages(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("directory/", 30)
	pv := FromBackup(&velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{Pod: corev1.ObjectReference{Namespace: "shop", Name: "db-0"}, Volume: "data"}})
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"a path":       {fmt.Errorf("open %sibdata1: input/output error", deep), `backup of volume "data" of pod shop/db-0 failed: open directory/directory/…`},
		"its end":      {fmt.Errorf("open %sibdata1: input/output error", deep), "/ibdata1: input/output error"},
		"a repository": {fmt.Errorf("open repository s3:https://store.example/%s: %w", deep, uploader.ErrWrongPassword), "s3:https://store.example/" + deep},
	} {
		status := newOperation(pv, nil).terminalStatusOf(t.Context(), t.Context(), attemptResult{}, test.err)
		if !strings.Contains(status.message, test.want) {
			t.Errorf("%s: got %q, want %q", name, status.message, test.want)
		}
	}
}
