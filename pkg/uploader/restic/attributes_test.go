package restic

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/faultfs"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// TestUnreadableAttributes: what is stored without its attributes is neither unreadable nor without a flaw, whichever way the version says so.
func TestUnreadableAttributes(t *testing.T) {
	withVersions(t, parts.ResticVersions(t), func(t *testing.T, version string) {
		v, err := ParseVersion("restic " + version)
		if err != nil {
			t.Fatal(err)
		}
		u := newUploader(t, version, Options{})
		repository := initialized(t, u, 0)
		for name, test := range map[string]struct {
			fault faultfs.Fault
			want  uploader.BackupResult
			err   error
			other bool // versions do so, and not this one
		}{
			"of a directory and a file": {
				fault: faultfs.Fault{Op: faultfs.Xattr, Errno: syscall.EACCES},
				want:  uploader.BackupResult{TotalFiles: 2, LackAttributes: uploader.LackAttributes{Entries: 2, Example: "dir"}},
			},
			"of a file": {
				fault: faultfs.Fault{Op: faultfs.Xattr, Path: "dir/0", Errno: syscall.EPERM},
				want:  uploader.BackupResult{TotalFiles: 2, LackAttributes: uploader.LackAttributes{Entries: 1, Example: "dir/0"}},
			},
			"nor even listed": { // older ones do not store the entry
				fault: faultfs.Fault{Op: faultfs.Xattrs, Path: "dir", Errno: syscall.EACCES}, other: !v.atLeast(17),
				want: uploader.BackupResult{TotalFiles: 2, LackAttributes: uploader.LackAttributes{Entries: 1, Example: "dir"}},
			},
			"not listed, and not stored": {
				fault: faultfs.Fault{Op: faultfs.Xattrs, Path: "dir/0", Errno: syscall.EACCES}, other: v.atLeast(17),
				want: uploader.BackupResult{TotalFiles: 1, Errors: 1, FailedPaths: []string{"dir/0"}},
			},
			"a volume that fails":             {fault: faultfs.Fault{Op: faultfs.Xattr, Errno: syscall.EIO}, err: uploader.ErrVolumeIO},
			"a volume that fails at its list": {fault: faultfs.Fault{Op: faultfs.Xattrs, Errno: syscall.EIO}, err: uploader.ErrVolumeIO},
		} {
			if test.other {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				checkAttributes(t, u, repository, test.fault, test.want, test.err)
			})
		}
	})
}

// checkAttributes backs up a volume whose attributes cannot be read, and compares what is restored of it.
func checkAttributes(t *testing.T, u *Uploader, repository uploader.Repository, fault faultfs.Fault, want uploader.BackupResult, wantErr error) {
	t.Helper()
	v := uploadertest.NewFailing(t, 2)
	for _, entry := range []string{"dir", "dir/0"} {
		for _, name := range []string{"user.a", "user.b"} {
			if err := unix.Setxattr(filepath.Join(v.Backing, entry), name, []byte("value"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	v.FS.Inject(fault)
	got, err := u.Backup(t.Context(), uploader.BackupRequest{Repository: repository, Volume: v.Root}, nil)
	if !errors.Is(err, wantErr) {
		t.Fatalf("got %+v, %v, want %v", got, err, wantErr)
	}
	if v.FS.Failed() == 0 {
		t.Error("the fault was not met: the test proves nothing")
	}
	if wantErr != nil {
		return
	}
	want.SnapshotID, want.TotalBytes, want.BytesUploaded = got.SnapshotID, got.TotalBytes, got.BytesUploaded
	if diff := cmp.Diff(want, got); diff != "" || got.SnapshotID == "" {
		t.Errorf("snapshot %q (-want +got):\n%s", got.SnapshotID, diff)
	}
	target := t.TempDir()
	if _, err := u.Restore(t.Context(), uploader.RestoreRequest{Repository: repository, Volume: open(t, target), SnapshotID: got.SnapshotID}, nil); err != nil {
		t.Fatal(err)
	}
	differences, err := tree.Compare(v.Backing, target, tree.Options{Plain: true})
	if len(differences) != int(got.Errors) || err != nil {
		t.Errorf("restored volume differs: %q, %v", differences, err)
	}
}

// TestAttributesOfPathWithSecret holds that an error is understood where the path of the entry has a word that is hidden, as the region is
// or the name of a profile.
func TestAttributesOfPathWithSecret(t *testing.T) {
	t.Parallel()
	repository := uploader.Repository{Env: map[string]uploader.Secret{"AWS_DEFAULT_REGION": "us-east-1"}}
	s := newBackupStream(progress.Discard, "/volume", volumeWith(t, "dir"))
	s.hide = repository.Hider()
	s.itemFailed("logs/us-east-1/x", "incomplete metadata for logs/us-east-1/x: xattr.list logs/us-east-1/x: permission denied")
	if s.attributes.entries != 1 || s.reading.Errors != 0 {
		t.Errorf("%d entries without attributes, %d errors", s.attributes.entries, s.reading.Errors)
	}
	s.itemFailed("dir", "read s3:us-east-1/shop: denied")
	if got := s.reading.LastError; got == "" || strings.Contains(got, "us-east-1") {
		t.Errorf("the last error is %q", got)
	}
}

// TestOnlyAttributes holds which errors of an entry leave it whole, in the words of each version.
func TestOnlyAttributes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stderr string
		want   int64 // entries that lack attributes; of one line it is these or an error
	}{
		"0.19, one attribute": {`{"message_type":"error","error":{"message":"can not obtain extended attribute user.a for dir/0: xattr.get dir/0 user.a: permission denied\n"},"during":"archival","item":"dir/0"}`, 1},
		"0.17, the list":      {`{"message_type":"error","error":{"message":"incomplete metadata for dir/0: xattr.list dir/0: permission denied"},"during":"archival","item":"dir/0"}`, 1},
		"0.14, one attribute": {"can not obtain extended attribute user.a for dir/0:", 1},
		"a name with both words": {
			`{"message_type":"error","error":{"message":"can not obtain extended attribute user. for x for a for b: xattr.get a for b user. for x: permission denied\n"},"during":"archival","item":"a for b"}`, 1,
		},
		"the target of a link": {`{"message_type":"error","error":{"message":"incomplete metadata for link: readlink link: permission denied"},"during":"archival","item":"link"}`, 0},
		"a file of this name": {
			`{"message_type":"error","error":{"message":"incomplete metadata for x: xattr.list : permission denied"},"during":"archival","item":"incomplete metadata for x: xattr.list "}`, 0,
		},
		"another file of this name": {
			`{"message_type":"error","error":{"message":"can not obtain extended attribute a for x: xattr.get x : permission denied"},"during":"archival","item":"can not obtain extended attribute a for x: xattr.get x "}`, 0,
		},
		"a file that is opened": {`{"message_type":"error","error":{"message":"open incomplete metadata for x: permission denied"},"during":"archival","item":"incomplete metadata for x"}`, 0},
	} {
		s := newBackupStream(progress.Discard, "/volume", volumeWith(t, "dir"))
		said := &stderr{itemFail: s.itemFailed, attribute: s.attributeUnread}
		said.line([]byte(test.stderr))
		said.line([]byte(test.stderr)) // an entry counts once, however many attributes it has
		if s.attributes.entries != test.want || s.reading.Errors != 2*(1-test.want) {
			t.Errorf("%s: %d entries without attributes, %d errors", name, s.attributes.entries, s.reading.Errors)
		}
		if left := said.fatal(); left != "" {
			t.Errorf("%s: it stands for a fatal error: %q", name, left)
		}
	}
}

// TestAttributesOfManyEntries: entries are counted in bounded memory, also where the lines of several mix.
func TestAttributesOfManyEntries(t *testing.T) {
	t.Parallel()
	s := newBackupStream(progress.Discard, "/volume", volumeWith(t))
	const many = 10 * maxRecent
	for i := range many {
		for _, said := range []string{"user.a for %d:", "user.a for %d, beside it:", "user.b for %d:", "user.b for %d, beside it:"} {
			s.attributeUnread(fmt.Sprintf(said, i))
		}
	}
	a := s.attributes
	if a.entries != 2*many || a.example != "0" || len(a.recent) > maxRecent || len(a.unknown) > maxFailedPaths {
		t.Errorf("%d entries, such as %s; %d and %d are kept", a.entries, a.example, len(a.recent), len(a.unknown))
	}
	if !slices.ContainsFunc(a.recent, func(name string) bool { return strings.HasSuffix(name, "beside it") }) {
		t.Errorf("kept are %q", a.recent)
	}
}
