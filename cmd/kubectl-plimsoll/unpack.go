package main

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// unpacking writes an archive, which is hostile input, beneath a directory of this machine, in constant memory. It makes files,
// directories, and links that cannot lead out. It never follows a link, and replaces nothing: what it cannot write it reports and counts.
type unpacking struct {
	root   *os.Root
	prefix string // the directory of the volume that is unpacked; names are relative to the volume
	report func(name string, why error)

	tally   tally
	refused int64
	example string // the first of them
	bytes   int64  // of files
	parent  string // the last directory that is known to be there, and none of whose parents is a link
	without string // the last directory that was refused: neither is what lies in it written
}

// maxReported bounds how many entries that could not be written are named.
const maxReported = 20

var (
	errTrimmed     = errors.New("this machine takes dots and spaces off the end of a name: it would be another file")
	errOutside     = errors.New("its name leads out of the directory")
	errTwice       = errors.New("there is such a name already: this file system may not tell upper case from lower case")
	errLinkOutside = errors.New("the link may lead out of the directory")
	errKind        = errors.New("it is neither a file, a directory nor a symbolic link")
	errInRefused   = errors.New("its directory could not be made")
	// errWrite marks errors that end the unpacking, such as that of a full disk.
	errWrite = errors.New("write to this machine")
	// errCutOff marks the error of an archive that ends in a file's content.
	errCutOff = errors.New("read the archive")
)

// archive unpacks all entries from the next one on, and calls done behind each. The error is that of the archive, or wraps errWrite.
func (u *unpacking) archive(r io.Reader, done func()) error {
	entries := tar.NewReader(r)
	for {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		name, ok := u.relative(header.Name)
		if ok && name == "" {
			continue // the directory itself
		}
		if ok {
			err = u.entry(name, header, entries)
		} else {
			err = errOutside
		}
		if ends(err) {
			return err
		}
		if err != nil {
			u.refuse(header.Name, err)
		}
		if _, err := io.Copy(io.Discard, entries); err != nil { //nolint:gosec // the rest of one that was refused goes nowhere
			return fmt.Errorf("read the archive: %w", err)
		}
		done()
	}
}

// ends reports whether nothing more can be unpacked after the error.
func ends(err error) bool {
	return errors.Is(err, errWrite) || errors.Is(err, errCutOff) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EROFS)
}

func (u *unpacking) refuse(name string, why error) {
	if u.refused++; u.refused == 1 {
		u.example = describe.Clean(name) + ": " + describe.Clean(why.Error())
	}
	if u.refused <= maxReported {
		u.report(name, why)
	}
}

// relative returns an entry's name relative to the directory that is unpacked, empty for that itself.
func (u *unpacking) relative(name string) (string, bool) {
	name = strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if name == "" || path.Clean(name) != name {
		return "", name == ""
	}
	if u.prefix != "" {
		if name == u.prefix {
			return "", true
		}
		var beneath bool
		if name, beneath = strings.CutPrefix(name, u.prefix+"/"); !beneath {
			return "", false
		}
	}
	return name, filepath.IsLocal(filepath.FromSlash(name)) && (filepath.Separator == '/' || !strings.ContainsRune(name, filepath.Separator))
}

// keepsName reports whether files of a system have the names of a path as they are. Windows takes dots and spaces off their ends, so that another file would
// be written (https://learn.microsoft.com/windows/win32/fileio/naming-a-file).
func keepsName(system, name string) bool {
	return system != "windows" || !slices.ContainsFunc(strings.Split(name, "/"), func(element string) bool {
		return strings.TrimRight(element, ". ") != element
	})
}

func (u *unpacking) entry(name string, header *tar.Header, content io.Reader) error {
	if !keepsName(runtime.GOOS, name) {
		return errTrimmed
	}
	if u.without != "" && strings.HasPrefix(name, u.without+"/") {
		return errInRefused
	}
	if err := u.makeParent(path.Dir(name)); err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeReg:
		return u.file(name, header, content)
	case tar.TypeDir:
		return u.directory(name, header.FileInfo().Mode().Perm())
	case tar.TypeSymlink:
		if !staysBelow(name, header.Linkname) {
			return fmt.Errorf("%w: %s", errLinkOutside, describe.Clean(header.Linkname))
		}
		return u.link(name, header.Linkname)
	}
	return errKind
}

// makeParent makes a directory and those above it, which may not be in an archive of a part of a volume. It refuses links.
func (u *unpacking) makeParent(dir string) error {
	if dir == "." || dir == u.parent {
		return nil
	}
	if err := u.makeParent(path.Dir(dir)); err != nil {
		return err
	}
	info, err := u.root.Lstat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err = u.root.Mkdir(dir, 0o700); err == nil {
			u.tally.add(countedDirectory, dir, nil)
		}
	case err == nil && !info.IsDir():
		err = fmt.Errorf("%s is no directory", describe.Clean(dir))
	}
	if err == nil {
		u.parent = dir
	}
	return err
}

func (u *unpacking) directory(name string, mode fs.FileMode) error {
	err := u.root.Mkdir(name, mode|0o700)
	if err != nil {
		u.without = name
		return twice(err)
	}
	u.parent = name
	u.tally.add(countedDirectory, name, nil)
	return nil
}

func (u *unpacking) link(name, target string) error {
	if err := u.root.Symlink(target, name); err != nil {
		return twice(err)
	}
	u.tally.add(countedLink, name, []byte(target))
	return nil
}

func (u *unpacking) file(name string, header *tar.Header, content io.Reader) error {
	file, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, header.FileInfo().Mode().Perm()|0o600)
	if err != nil {
		return twice(err)
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(&localWriter{file}, sum), content)
	if err == nil && n != header.Size {
		err = io.ErrUnexpectedEOF
	}
	if closeErr := file.Close(); err == nil && closeErr != nil {
		err = errors.Join(errWrite, closeErr)
	}
	if err != nil {
		if !errors.Is(err, errWrite) {
			err = fmt.Errorf("%w: %w", errCutOff, err)
		}
		return errors.Join(err, u.root.Remove(name))
	}
	u.bytes += n
	u.tally.add(countedFile, name, sum.Sum(nil))
	_ = u.root.Chtimes(name, header.ModTime, header.ModTime) // the time is a courtesy
	return nil
}

// localWriter marks errors of this machine's disk.
type localWriter struct{ io.Writer }

func (w *localWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		err = fmt.Errorf("%w: %w", errWrite, err)
	}
	return n, err
}

// twice names the cause of fs.ErrExist.
func twice(err error) error {
	if errors.Is(err, fs.ErrExist) {
		return errTwice
	}
	return err
}

// staysBelow reports whether a link cannot lead out of the directory, whatever other links there are that stay below it: it goes up
// only at its begin, where it is in a real directory, and no further than to the top.
func staysBelow(name, target string) bool {
	target = filepath.ToSlash(target)
	if target == "" || path.IsAbs(target) || filepath.IsAbs(target) || filepath.VolumeName(target) != "" {
		return false
	}
	up, down := 0, false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == ".." && down:
			return false
		case part == "..":
			up++
		case part != "" && part != ".":
			down = true
		}
	}
	return up <= strings.Count(name, "/")
}
