package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
)

// cutting is a server of one file, or of an archive, which cuts answers off.
type cutting struct {
	content   string
	directory bool
	old       bool   // it leaves out nothing of an archive
	after     int    // cut off after so many bytes; negative: not at all
	say       string // the End's error
	ended     bool   // the End says that it is the session's
	sum       string // the End's checksum in place of the right one
	during    func() // called before the content is sent; may be nil

	offset int64 // of the last question
}

func (c *cutting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", protocol.TrailerEnd)
	if strings.HasSuffix(r.URL.Path, protocol.Volumes) {
		_ = json.NewEncoder(w).Encode(protocol.Volume{PodVolumeBackup: "p", UID: "1", SnapshotID: "2", Volume: "data"})
		w.Header().Set(protocol.TrailerEnd, protocol.End{Complete: true}.Encode())
		return
	}
	q, err := protocol.ParseQuery(r.URL.Query())
	if err != nil || r.Header.Get("Authorization") != "Bearer token" {
		http.Error(w, "no", http.StatusUnauthorized)
		return
	}
	c.offset = q.Offset
	w.Header().Set(protocol.HeaderType, protocol.TypeFile)
	w.Header().Set(protocol.HeaderSize, strconv.Itoa(len(c.content)))
	if c.directory {
		w.Header().Set(protocol.HeaderType, protocol.TypeDirectory)
		if !c.old {
			w.Header().Set(protocol.HeaderOffset, strconv.FormatInt(q.Offset, 10))
		} else {
			q.Offset = 0
		}
	}
	left := c.content[min(q.Offset, int64(len(c.content))):]
	if c.after >= 0 {
		left = left[:c.after]
	}
	if c.during != nil {
		c.during()
	}
	_, _ = w.Write([]byte(left))
	if c.after >= 0 && c.say == "" {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	sum := sha256.Sum256([]byte(c.content))
	end := protocol.End{Complete: c.say == "", Error: c.say, SessionEnded: c.ended, SHA256: hex.EncodeToString(sum[:])}
	if c.sum != "" {
		end.SHA256 = c.sum
	}
	w.Header().Set(protocol.TrailerEnd, end.Encode())
}

// get runs the command's work against the server.
func (c *cutting) get(t *testing.T, path, dest string, overwrite bool) error {
	t.Helper()
	server := httptest.NewServer(c)
	defer server.Close()
	s := &fileSession{request: &v1alpha1.FileRequest{}, token: "token", address: server.URL, http: server.Client()}
	s.request.Name = "r"
	o := &repositoryGet{path: path, dest: dest, overwrite: overwrite, out: t.Output(), errOut: t.Output()}
	return o.run(t.Context(), s)
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// TestGetResumes: a file that was cut off is not the file; the next command goes on where it was, and notices what is wrong.
func TestGetResumes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mine := filepath.Join(dir, "f.part")
	if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &cutting{content: strings.Repeat("0123456789", 1000), after: 4000}
	if err := c.get(t, "d/f", dir, false); !errors.Is(err, errSessionLost) || !strings.Contains(err.Error(), "has 3.9 KiB of 9.7 KiB") {
		t.Fatalf("cut off: %v", err)
	}
	if got := names(t, dir); len(got) != 2 || got[0] == "f" {
		t.Fatalf("cut off: %v", got)
	}
	c.after, c.say = 1000, "the pack is damaged"
	if err := c.get(t, "d/f", dir, false); err == nil || errors.Is(err, errSessionLost) || !strings.Contains(err.Error(), c.say) || c.offset != 4000 {
		t.Errorf("damaged: %v, from %d", err, c.offset)
	}
	c.after, c.say = -1, ""
	if err := c.get(t, "d/f", dir, false); err != nil || c.offset != 5000 {
		t.Errorf("whole: %v, from %d", err, c.offset)
	}
	got, err := os.ReadFile(filepath.Join(dir, "f"))
	if err != nil || string(got) != c.content {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if err := c.get(t, "d/f", dir, false); err == nil || !strings.Contains(err.Error(), "--overwrite") {
		t.Errorf("again: %v", err)
	}
	c.sum = strings.Repeat("0", 64)
	if err := c.get(t, "d/f", dir, true); !errors.Is(err, errChecksum) {
		t.Errorf("another checksum: %v", err)
	}
	c.content, c.sum = "new", ""
	if err := c.get(t, "d/f", dir, true); err != nil || c.offset != 0 {
		t.Errorf("after another checksum: %v, from %d", err, c.offset)
	}
	if got, err := os.ReadFile(mine); err != nil || string(got) != "mine" || len(names(t, dir)) != 2 {
		t.Errorf("%q, %v; %v", got, err, names(t, dir))
	}
}

// TestGetShared: what another command writes to the part of a file at the same time does not become the file.
func TestGetShared(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &cutting{content: strings.Repeat("0123456789", 1000), after: 4000}
	if err := c.get(t, "d/f", dir, false); !errors.Is(err, errSessionLost) {
		t.Fatalf("cut off: %v", err)
	}
	part := filepath.Join(dir, names(t, dir)[0])
	c.after, c.during = -1, func() {
		if err := os.WriteFile(part, []byte(c.content+"and more"), 0o600); err != nil {
			t.Error(err)
		}
	}
	if err := c.get(t, "d/f", dir, false); !errors.Is(err, errChecksum) || len(names(t, dir)) > 0 {
		t.Errorf("a part that has grown: %v; %v", err, names(t, dir))
	}
}

// TestGetDirectory: a directory is there when all of it has come, and replaces nothing.
func TestGetDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &cutting{directory: true, content: archiveOf(t, "d/f", "d/up -> ../..", "d/g").String(), after: 1500}
	c.after = 300
	if err := c.get(t, "d", dir, false); !errors.Is(err, errSessionLost) || len(names(t, dir)) != 0 {
		t.Errorf("cut off before anything is there: %v; %v", err, names(t, dir))
	}
	c.after = 1500
	c.say = "the pack is damaged"
	if err := c.get(t, "d", dir, false); err == nil || !strings.Contains(err.Error(), c.say) || len(names(t, dir)) != 2 || names(t, dir)[0] == "d" {
		t.Errorf("damaged: %v; %v", err, names(t, dir))
	}
	c.after, c.say, c.sum = -1, "", strings.Repeat("0", 64)
	if err := c.get(t, "d", dir, false); !errors.Is(err, errChecksum) || len(names(t, dir)) != 0 {
		t.Errorf("another checksum: %v; %v", err, names(t, dir))
	}
	c.sum = ""
	exit := &program.ExitError{}
	if err := c.get(t, "d", dir, false); !errors.As(err, &exit) || exit.Code != exitFailed || !strings.Contains(err.Error(), "1 entry of the backup") {
		t.Errorf("a link that leads out: %v", err)
	}
	if got := strings.Join(names(t, filepath.Join(dir, "d")), " "); got != "f g" {
		t.Errorf("got %s", got)
	}
	if err := c.get(t, "d", dir, true); err == nil || !strings.Contains(err.Error(), "only a file can be replaced") {
		t.Errorf("again: %v", err)
	}
	var out bytes.Buffer
	server := httptest.NewServer(c)
	defer server.Close()
	s := &fileSession{request: &v1alpha1.FileRequest{}, token: "token", address: server.URL, http: server.Client()}
	o := &repositoryGet{path: "d", dest: toStdout, out: &out, errOut: t.Output()}
	if err := o.run(t.Context(), s); err != nil || out.String() != c.content {
		t.Errorf("standard output: %d bytes, %v", out.Len(), err)
	}
	c.after = 700
	if err := o.run(t.Context(), s); !errors.Is(err, errSessionLost) {
		t.Errorf("standard output that was cut off: %v", err)
	}
	s.token = "another"
	if err := o.run(t.Context(), s); !errors.Is(err, errSessionLost) || !strings.Contains(err.Error(), "401") {
		t.Errorf("an ended session: %v", err)
	}
}

// TestGetDirectoryResumes: a directory that was cut off goes on behind the last entry that is there, unless something is not as it was.
func TestGetDirectoryResumes(t *testing.T) {
	t.Parallel()
	archive := archiveOf(t, "d/sub/", "d/sub/f", "d/up -> ../..", "d/in -> sub/f", "d/g", "d/sub/h").String()
	whole := func(t *testing.T, dir string) {
		t.Helper()
		for name, want := range map[string]string{"sub/f": "d/sub/f", "g": "d/g", "sub/h": "d/sub/h", "in": "d/sub/f"} {
			if got, err := os.ReadFile(filepath.Join(dir, "d", name)); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if got := names(t, dir); len(got) != 1 {
			t.Errorf("left behind: %v", got)
		}
	}
	unpacking := func(t *testing.T, dir string) string {
		t.Helper()
		for _, name := range names(t, dir) {
			if strings.HasSuffix(name, ".unpacking") {
				return filepath.Join(dir, name)
			}
		}
		t.Fatalf("nothing is kept: %v", names(t, dir))
		return ""
	}
	for after := 1; after < len(archive)-1; after += 100 { // the last byte is in the archive's end
		dir := t.TempDir()
		c := &cutting{directory: true, content: archive, after: after}
		if err := c.get(t, "d", dir, false); !errors.Is(err, errSessionLost) {
			t.Fatalf("cut off at %d: %v", after, err)
		}
		kept := len(names(t, dir)) > 0
		c.after = -1
		err := c.get(t, "d", dir, false)
		if exit := (&program.ExitError{}); !errors.As(err, &exit) || !strings.Contains(err.Error(), "1 entry of the backup") || kept != (c.offset > 0) || c.offset > int64(after) {
			t.Errorf("cut off at %d: %v, from %d", after, err, c.offset)
		}
		whole(t, dir)
	}
	for name, tc := range map[string]struct {
		ended    bool // by the server, which says so
		change   func(t *testing.T, c *cutting, unpacking string)
		anew     bool // from the begin
		checksum bool // it fails, and the next command succeeds
	}{
		"a server before ours":    {change: func(_ *testing.T, c *cutting, _ string) { c.old = true }},
		"a server that has ended": {ended: true, change: func(*testing.T, *cutting, string) {}},
		"a file was changed": {change: func(t *testing.T, _ *cutting, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "sub", "f"), []byte("D/sub/f"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, anew: true},
		"a file is empty": {change: func(t *testing.T, _ *cutting, dir string) {
			if err := os.Truncate(filepath.Join(dir, "sub", "f"), 0); err != nil {
				t.Fatal(err)
			}
		}, anew: true},
		"the directory is gone": {change: func(t *testing.T, _ *cutting, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, anew: true},
		"another archive": {change: func(_ *testing.T, c *cutting, _ string) {
			c.content = strings.ReplaceAll(archive, "d/sub/f", "d/sub/e")
		}, checksum: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := &cutting{directory: true, content: archive, after: len(archive) - 2500, ended: tc.ended}
			if tc.ended {
				c.say = "the server stops"
			}
			if err := c.get(t, "d", dir, false); !errors.Is(err, errSessionLost) || !strings.Contains(err.Error(), "the same command goes on there") {
				t.Fatalf("cut off: %v", err)
			}
			tc.change(t, c, unpacking(t, dir))
			c.after, c.say, c.ended = -1, "", false
			err := c.get(t, "d", dir, false)
			if (c.offset == 0) != tc.anew || errors.Is(err, errChecksum) != tc.checksum {
				t.Fatalf("from %d: %v", c.offset, err)
			}
			if tc.checksum {
				if len(names(t, dir)) > 0 {
					t.Errorf("another archive left %v", names(t, dir))
				}
				return
			}
			whole(t, dir)
		})
	}
}

// TestGetDirectoryNotRead: what was unpacked stays when the server cannot read on, such as with a wrong password, which it may find out only when the
// answer has begun.
func TestGetDirectoryNotRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &cutting{directory: true, content: archiveOf(t, "d/f", "d/g", "d/h", "d/i").String(), after: 1500}
	if err := c.get(t, "d", dir, false); !errors.Is(err, errSessionLost) {
		t.Fatalf("cut off: %v", err)
	}
	kept := names(t, dir)
	for _, after := range []int{0, 1, 1500} {
		c.after, c.say = after, "wrong repository password"
		if err := c.get(t, "d", dir, false); err == nil || !strings.Contains(err.Error(), c.say) || !strings.Contains(err.Error(), "the same command goes on there") || c.offset != 515 {
			t.Errorf("not read: %v, from %d", err, c.offset)
		}
		if left := names(t, dir); strings.Join(left, " ") != strings.Join(kept, " ") {
			t.Errorf("%q was kept, and %q is left", kept, left)
		}
	}
	c.after, c.say = -1, ""
	if err := c.get(t, "d", dir, false); err != nil || c.offset != 1539 || strings.Join(names(t, dir), " ") != "d" {
		t.Errorf("%v, from %d; %v", err, c.offset, names(t, dir))
	}
	if got := strings.Join(names(t, filepath.Join(dir, "d")), " "); got != "f g h i" {
		t.Errorf("got %s", got)
	}
}

// writerFunc is called when an entry is not written. Lines about progress come from another goroutine.
type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) {
	if bytes.HasPrefix(p, []byte("not written: ")) {
		f()
	}
	return len(p), nil
}

// TestGetDirectoryShared: two commands cannot unpack into one directory, and what one has left is there for the next if the first could not go on.
func TestGetDirectoryShared(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	archive := archiveOf(t, "d/f", "d/g", "d/h", "d/i").String()
	c := &cutting{directory: true, content: archive, after: 4000}
	if err := c.get(t, "d", dir, false); !errors.Is(err, errSessionLost) || len(names(t, dir)) != 2 {
		t.Fatalf("cut off: %v; %v", err, names(t, dir))
	}
	kept := names(t, dir)
	server := httptest.NewServer(c)
	defer server.Close()
	s := &fileSession{request: &v1alpha1.FileRequest{}, token: "another", address: server.URL, http: server.Client()}
	o := &repositoryGet{path: "d", dest: dir, out: t.Output(), errOut: t.Output()}
	if err := o.run(t.Context(), s); !errors.Is(err, errSessionLost) || strings.Join(names(t, dir), " ") != strings.Join(kept, " ") {
		t.Fatalf("an ended session: %v; %v", err, names(t, dir))
	}
	other := make(chan error, 1)
	c.after, c.during = -1, func() {
		second := &cutting{directory: true, content: archive, after: -1}
		other <- second.get(t, "d", dir, false)
	}
	err := c.get(t, "d", dir, false)
	if otherErr := <-other; err != nil || c.offset == 0 || !errors.Is(otherErr, fs.ErrExist) {
		t.Errorf("%v, from %d; a second command at the same time: %v", err, c.offset, otherErr)
	}
	if got := strings.Join(names(t, dir), " "); got != "d" {
		t.Errorf("left behind: %s", got)
	}
	if got := strings.Join(names(t, filepath.Join(dir, "d")), " "); got != "f g h i" {
		t.Errorf("got %s", got)
	}
}

// TestGetDirectoryReplaced: where another directory takes the name of the one that is unpacked into, it is neither renamed to the target nor removed.
func TestGetDirectoryReplaced(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]int{"complete": -1, "cut off": 4000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			c := &cutting{directory: true, content: archiveOf(t, "d/f", "d/up -> ../..", "d/g", "d/h").String(), after: after}
			server := httptest.NewServer(c)
			defer server.Close()
			s := &fileSession{request: &v1alpha1.FileRequest{}, token: "token", address: server.URL, http: server.Client()}
			var theirs string
			replace := func() {
				if theirs == "" {
					theirs = filepath.Join(dir, slices.Max(names(t, dir)))
					mine := filepath.Join(theirs, "theirs")
					if err := errors.Join(os.RemoveAll(theirs), os.Mkdir(theirs, 0o700), os.WriteFile(mine, nil, 0o600)); err != nil {
						t.Error(err)
					}
				}
			}
			o := &repositoryGet{path: "d", dest: dir, out: t.Output(), errOut: writerFunc(replace)}
			if err := o.run(t.Context(), s); !errors.Is(err, errReplaced) {
				t.Errorf("got %v", err)
			}
			if _, err := os.Lstat(filepath.Join(dir, "d")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the target: %v", err)
			}
			if got := strings.Join(names(t, theirs), " "); got != "theirs" {
				t.Errorf("theirs has %s", got)
			}
		})
	}
}

// TestGetDirectoryPlanted: in a directory that others can write to, no link is followed, and what others may have written is not gone on with.
func TestGetDirectoryPlanted(t *testing.T) {
	t.Parallel()
	elsewhere := func(t *testing.T, name string) {
		t.Helper()
		to := filepath.Join(t.TempDir(), "to")
		if err := errors.Join(os.Rename(name, to), os.Symlink(to, name)); err != nil {
			t.Fatal(err)
		}
	}
	anybodys := func(t *testing.T, name string) {
		t.Helper()
		if err := os.Chmod(name, 0o770); err != nil {
			t.Fatal(err)
		}
	}
	anothers := func(t *testing.T, name string) {
		t.Helper()
		if err := os.Lchown(name, 12345, -1); err != nil {
			t.Skipf("another owner needs the right to make one: %v", err)
		}
	}
	for name, plant := range map[string]func(*testing.T, string){"a link": elsewhere, "rights of others": anybodys, "another owner": anothers} {
		for _, suffix := range []string{".resume", ".unpacking"} {
			t.Run(name+" as "+suffix, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				c := &cutting{directory: true, content: archiveOf(t, "d/f", "d/g", "d/h").String(), after: 4000}
				if err := c.get(t, "d", dir, false); !errors.Is(err, errSessionLost) {
					t.Fatalf("cut off: %v", err)
				}
				kept := names(t, dir)
				for _, name := range kept {
					if strings.HasSuffix(name, suffix) {
						plant(t, filepath.Join(dir, name))
					}
				}
				c.after = -1
				err := c.get(t, "d", dir, false)
				if err == nil || !strings.Contains(err.Error(), "remove it, or choose another name") || strings.Join(names(t, dir), " ") != strings.Join(kept, " ") {
					t.Errorf("%v; %v", err, names(t, dir))
				}
			})
		}
	}
}

// TestGetPlanted: in a directory that others can write to, a part that somebody else may have made is neither written nor made the file.
func TestGetPlanted(t *testing.T) {
	t.Parallel()
	elsewhere := func(t *testing.T) string {
		t.Helper()
		theirs := filepath.Join(t.TempDir(), "theirs")
		if err := os.WriteFile(theirs, []byte("theirs"), 0o600); err != nil {
			t.Fatal(err)
		}
		return theirs
	}
	for name, plant := range map[string]func(t *testing.T, part string) error{
		"a link":         func(t *testing.T, part string) error { t.Helper(); return os.Symlink(elsewhere(t), part) },
		"a link to none": func(t *testing.T, part string) error { t.Helper(); return os.Symlink(elsewhere(t)+"-gone", part) },
		"another name":   func(t *testing.T, part string) error { t.Helper(); return os.Link(elsewhere(t), part) },
		"rights of others": func(t *testing.T, part string) error {
			t.Helper()
			return errors.Join(os.WriteFile(part, []byte("theirs"), 0o600), os.Chmod(part, 0o606))
		},
	} {
		for _, late := range []bool{false, true} { // when the command has looked what is there
			t.Run(name+", late: "+strconv.FormatBool(late), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				c := &cutting{content: strings.Repeat("0123456789", 1000), after: 4000}
				if err := c.get(t, "d/f", dir, false); !errors.Is(err, errSessionLost) {
					t.Fatalf("cut off: %v", err)
				}
				part := filepath.Join(dir, names(t, dir)[0])
				if err := os.Remove(part); err != nil {
					t.Fatal(err)
				}
				doPlant := func() {
					if err := plant(t, part); err != nil {
						t.Error(err)
					}
				}
				if c.after = -1; late {
					c.during = doPlant
				} else {
					doPlant()
				}
				err := c.get(t, "d/f", dir, false)
				if err == nil || len(names(t, dir)) != 1 {
					t.Errorf("%v; %v", err, names(t, dir))
				}
				if got, err := os.ReadFile(part); !errors.Is(err, fs.ErrNotExist) && string(got) != "theirs" {
					t.Errorf("it was written: %d bytes, %v", len(got), err)
				}
			})
		}
	}
}

// TestGetDirectoryCheckpointLink: a link that somebody makes in place of a checkpoint is not written through.
func TestGetDirectoryCheckpointLink(t *testing.T) {
	t.Parallel()
	dir, secret := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &cutting{directory: true, content: archiveOf(t, "d/f", "d/up -> ../..", "d/g", "d/h").String(), after: 4000}
	server := httptest.NewServer(c)
	defer server.Close()
	s := &fileSession{request: &v1alpha1.FileRequest{}, token: "token", address: server.URL, http: server.Client()}
	plant := func() {
		base := strings.TrimSuffix(slices.Max(names(t, dir)), "unpacking")
		for _, suffix := range []string{"resume", "resuming"} {
			name := filepath.Join(dir, base+suffix)
			if err := errors.Join(os.RemoveAll(name), os.Symlink(secret, name)); err != nil {
				t.Error(err)
			}
		}
	}
	o := &repositoryGet{path: "d", dest: dir, out: t.Output(), errOut: writerFunc(sync.OnceFunc(plant))}
	if err := o.run(t.Context(), s); !errors.Is(err, errSessionLost) {
		t.Errorf("cut off: %v", err)
	}
	if got, err := os.ReadFile(secret); err != nil || string(got) != "mine" {
		t.Errorf("the link's file has %q, %v", got, err)
	}
	c.after = -1
	if err := c.get(t, "d", dir, false); c.offset == 0 || strings.Join(names(t, dir), " ") != "d" {
		t.Errorf("%v, from %d; %v", err, c.offset, names(t, dir))
	}
}

// TestGetDirectoryImplied: directories that are only in the name of the entry that was cut off are no reason to begin anew.
func TestGetDirectoryImplied(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	archive := archiveOf(t, "d/f", "d/one/two/g").String()
	c := &cutting{directory: true, content: archive, after: strings.LastIndex(archive, "d/one/two/g") + 1}
	if err := c.get(t, "d", dir, false); !errors.Is(err, errSessionLost) || len(names(t, dir)) != 2 {
		t.Fatalf("cut off: %v; %v", err, names(t, dir))
	}
	c.after = -1
	if err := c.get(t, "d", dir, false); err != nil || c.offset == 0 {
		t.Errorf("%v, from %d", err, c.offset)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "d", "one", "two", "g")); err != nil || string(got) != "d/one/two/g" {
		t.Errorf("%q, %v", got, err)
	}
}

// TestListCutOff: a list that was cut off is an error, and no JSON.
func TestListCutOff(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newListPrinter(output{formatJSON}, &out, "")
	for range 2 {
		if err := p.print(shownFile{Path: "a\u202eb"}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.end(errSessionLost); !errors.Is(err, errSessionLost) || json.Valid(out.Bytes()) {
		t.Errorf("%v: %s", err, out.String())
	}
	if err := p.end(nil); err != nil || !json.Valid(out.Bytes()) || strings.ContainsRune(out.String(), '\u202e') {
		t.Errorf("%v: %s", err, out.String())
	}
}
