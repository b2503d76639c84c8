package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// archiveOf makes an archive; names that end with a slash are directories, "a -> b" is a link.
func archiveOf(t *testing.T, names ...string) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range names {
		header := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o4644, Size: int64(len(name)), Format: tar.FormatPAX}
		from, to, isLink := strings.Cut(name, " -> ")
		switch {
		case isLink:
			header.Name, header.Linkname, header.Typeflag, header.Size = from, to, tar.TypeSymlink, 0
		case strings.HasSuffix(name, "/"):
			header.Typeflag, header.Mode, header.Size = tar.TypeDir, 0o500, 0
		case strings.HasPrefix(name, "fifo"):
			header.Typeflag, header.Size = tar.TypeFifo, 0
		case strings.HasPrefix(name, "hard"):
			header.Typeflag, header.Size, header.Linkname = tar.TypeLink, 0, "/etc/passwd"
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if header.Size > 0 {
			if _, err := w.Write([]byte(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// unpack unpacks an archive into a directory beside a file, and returns what is there then, and what was refused.
func unpack(t *testing.T, prefix string, archive *bytes.Buffer) (there map[string]string, refused map[string]error, err error) {
	t.Helper()
	outside := t.TempDir()
	dir := filepath.Join(outside, "dir")
	if err := errors.Join(os.WriteFile(filepath.Join(outside, "secret"), []byte("mine"), 0o600), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	there, refused = map[string]string{}, map[string]error{}
	u := &unpacking{root: root, prefix: prefix, report: func(name string, why error) { refused[name] = why }}
	err = u.archive(archive, func() {})
	if int(u.refused) != len(refused) {
		t.Errorf("%d refused, and %d reported", u.refused, len(refused))
	}
	walkErr := filepath.WalkDir(outside, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, _ := filepath.Rel(outside, path)
		if d.Type()&fs.ModeSymlink != 0 {
			there[name], err = os.Readlink(path)
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 {
			t.Errorf("%s has mode %v", name, info.Mode())
		}
		text, readErr := os.ReadFile(path)
		there[name] = string(text)
		return errors.Join(err, readErr)
	})
	if walkErr != nil {
		t.Fatal(walkErr)
	}
	if there["secret"] != "mine" {
		t.Error("a file outside was changed")
	}
	delete(there, "secret")
	for name := range there {
		if !strings.HasPrefix(name, "dir/") {
			t.Errorf("%s is outside", name)
		}
	}
	return there, refused, err
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	there, refused, err := unpack(t, "a/b", archiveOf(t, "a/b/", "a/b/f", "a/b/sub/", "a/b/sub/g", "a/b/sub/l -> ../f", "a/b/sub/deeper/h", "a/other"))
	if err != nil || len(there) != 4 || there["dir/f"] != "a/b/f" || there["dir/sub/deeper/h"] != "a/b/sub/deeper/h" || there["dir/sub/l"] != "../f" {
		t.Errorf("%v, %v", there, err)
	}
	if len(refused) != 1 || !errors.Is(refused["a/other"], errOutside) {
		t.Errorf("refused: %v", refused)
	}
}

// TestUnpackHostile: an archive writes nothing outside of the directory, follows no link, and replaces nothing. What is refused is counted,
// and does not hide the rest.
func TestUnpackHostile(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 300)
	there, refused, err := unpack(t, "", archiveOf(t,
		"../secret", "/etc/x", "a/../../secret", "sub/", "good", "good",
		"up -> ..", "abs -> /tmp", "sub/up -> ../..", "sub/fine -> ../good",
		"here -> .", "through -> here/../..", "sub/through -> ../here/..", "sub/here -> ..", "sub/chain -> here/here/secret",
		"here/written", "sub/here/written", "sub/", "sub/again", "good/beneath", "fifo", "hard", long, long+"/in", "last",
	))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{
		"../secret": errOutside, "/etc/x": errOutside, "a/../../secret": errOutside, "good": errTwice, "up": errLinkOutside, "abs": errLinkOutside,
		"sub/up": errLinkOutside, "through": errLinkOutside, "sub/through": errLinkOutside, "here/written": nil, "sub/here/written": nil, "sub/": errTwice,
		"sub/again": errInRefused, "good/beneath": nil, "fifo": errKind, "hard": errKind, long: nil, long + "/in": nil,
	} {
		if got := refused[name]; got == nil || want != nil && !errors.Is(got, want) {
			t.Errorf("%.20s: got %v, want %v", name, got, want)
		}
	}
	for _, name := range []string{"good", "sub/fine", "here", "sub/here", "last"} {
		if _, ok := there["dir/"+name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
	if there["dir/last"] != "last" {
		t.Errorf("the last file has %q", there["dir/last"])
	}
}

// TestUnpackCutOff: an archive that ends early is an error.
func TestUnpackCutOff(t *testing.T) {
	t.Parallel()
	whole := archiveOf(t, "first", "second")
	whole.Truncate(512 + 512 + 512 + 3)
	if _, _, err := unpack(t, "", whole); err == nil {
		t.Error("got no error")
	}
}

func TestKeepsName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"a/b.txt": true, ".hidden": true, "a b": true, "foo.": false, "foo ": false, "dir./f": false, "a/b. .": false, "...": false} {
		if got := keepsName("windows", name); got != want {
			t.Errorf("%q: %t", name, got)
		}
		if !keepsName("linux", name) {
			t.Errorf("%q on Linux", name)
		}
	}
}
