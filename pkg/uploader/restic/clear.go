package restic

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// obstacles are what lies in a volume and must not be written through: links, FIFOs, devices, sockets, and files that have
// another name, too. Whoever leaves such a thing there may want that something outside of the volume is changed. For restic before
// 0.17 any file is one: it removes what lies in the place of a hard link, makes no link then, and reports no error
// (fs.Remove in restoreHardlinkAt, internal/restorer/restorer.go of 0.14 and 0.16).
type obstacles struct {
	volume *os.Root
	all    bool   // any file is one
	own    string // RestoreRequest.Own, which is none
	found  bool
	odd    map[string][]string // those with names that are not UTF-8, by the path that restic prints for them
	odds   int                 // how many these are
	err    error               // what removing them gave
	bytes  int64               // how much the files have that lie in the volume, maxPresent at most
	reread bool                // restic will compare the files that are there
	step   func()              // called for each entry that was looked at, or that restic has listed
}

// maxPresent bounds what is counted: files without data may have any size.
const maxPresent = 16 << 40

// maxOdd bounds the memory that odd names take.
const maxOdd = 10_000

// clear removes what a restore must not write through, where the snapshot has something. restic before 0.17 follows links
// to directories, changes owner, mode and time of what they lead to, and fails where an earlier try has made a link; every
// restic waits for a reader of the FIFO that lies where it wants to write a file. Without such things in the volume it
// does nothing. It returns how many bytes lie in the volume.
func (u *Uploader) clear(ctx context.Context, w *workspace, req uploader.RestoreRequest, step func()) (present int64, err error) {
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", req.Volume.Fd()))
	if err != nil {
		return 0, fmt.Errorf("open volume: %w", err)
	}
	defer root.Close()
	compares := u.version.comparesContent()
	o := &obstacles{volume: root, odd: map[string][]string{}, all: !compares, own: req.Own, reread: compares, step: step}
	if err := o.find(ctx, req.Volume); err != nil {
		return 0, fmt.Errorf("look for links in the volume: %w", err)
	}
	if !o.found || o.err != nil {
		return o.bytes, o.err
	}
	u.options.Logger.Info("The volume holds what restic must not write over: removing what the snapshot has, too")
	err = u.run(ctx, w, invocation{command: "ls", args: listArgs(req), stdout: o.removeListed})
	if err = errors.Join(err, o.err); err != nil {
		return 0, fmt.Errorf("remove links that are in the way: %w", err)
	}
	return o.bytes, nil
}

// find looks through the volume. Directories that cannot be read may hold anything.
func (o *obstacles) find(ctx context.Context, dir *os.File) error {
	return volume.WalkDir(ctx, dir, func(e volume.Walked) error {
		o.step()
		switch {
		case o.own != "" && strings.HasPrefix(e.Path+"/", o.own+"/"):
		case e.Err != nil:
			o.found = true
		case e.Stat.Mode&unix.S_IFMT != unix.S_IFDIR:
			o.note(e.Path, &e.Stat)
		}
		if o.odds > maxOdd {
			return errors.New("too many of them have names that are not UTF-8")
		}
		return nil
	})
}

// note counts a file, and keeps in mind that an entry is an obstacle, if it is one.
func (o *obstacles) note(name string, entry *unix.Stat_t) {
	regular := entry.Mode&unix.S_IFMT == unix.S_IFREG
	if regular {
		o.bytes = min(o.bytes+min(entry.Size, maxPresent), maxPresent)
		if o.reread {
			o.dropPages(name)
		}
	}
	ordinary := regular && entry.Nlink <= 1
	if ordinary && !o.all {
		return
	}
	o.found = true
	if ordinary { // of a name that is not UTF-8 restic prints what it may print of another one, too: only its own path is removed
		return
	}
	if printed := strings.ToValidUTF8(name, "\ufffd"); printed != name {
		o.odd[oddKey(printed)] = append(o.odd[oddKey(printed)], name)
		o.odds++
	}
}

// dropPages makes restic read a file from the disk. After a failed write the kernel takes the pages for clean, so the page
// cache holds what the disk has lost. Of a file that cannot be opened restic cannot read anything either, and writes it.
func (o *obstacles) dropPages(name string) {
	file, err := o.volume.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer file.Close()
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil && o.err == nil {
		o.err = fmt.Errorf("drop cached pages of a file that is there already: %w", err)
	}
}

// oddKey is the same for what restic prints of a path, with one sign for each wrong byte, and for ours, with one for a run
// of them.
func oddKey(name string) string {
	for strings.Contains(name, "\ufffd\ufffd") {
		name = strings.ReplaceAll(name, "\ufffd\ufffd", "\ufffd")
	}
	return name
}

// isObstacle reports whether an entry must not be written through.
func (o *obstacles) isObstacle(info fs.FileInfo) bool {
	if info.IsDir() {
		return false
	}
	inode, ok := info.Sys().(*syscall.Stat_t)
	return !info.Mode().IsRegular() || o.all || ok && inode.Nlink > 1
}

// removeListed removes the obstacle at the path of an entry of the snapshot. Parents come before what is in them.
func (o *obstacles) removeListed(line []byte) {
	o.step()
	var node struct {
		Path string `json:"path"` // from the snapshot's root
	}
	if json.Unmarshal(line, &node) != nil || node.Path == "" {
		return // the snapshot itself
	}
	name := strings.TrimPrefix(path.Clean(node.Path), "/")
	there := []string{name}
	if replaced(line) {
		there = o.odd[oddKey(name)]
	}
	for _, name := range there {
		// Whatever happens to the path between these two, Root removes nothing outside.
		if info, err := o.volume.Lstat(name); err != nil || !o.isObstacle(info) {
			continue
		}
		if err := o.volume.Remove(name); err != nil && o.err == nil {
			o.err = err
		}
	}
}

// replaced reports whether a line of JSON has U+FFFD for bytes that are not UTF-8: that is written as an escape sequence, and the U+FFFD of a name
// is not (docs/contracts/restic-kopia.md 11). What lies in the volume by the name that is printed then is something else.
func replaced(line []byte) bool {
	return bytes.Contains(bytes.ReplaceAll(line, []byte(`\\`), nil), []byte(`\ufffd`))
}
