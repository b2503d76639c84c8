package volume

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// maxDifferingPaths is how many paths Compared names.
	maxDifferingPaths = 10
	// maxRemembered is how many entries that differ are remembered, so that each counts once.
	maxRemembered = 100_000
)

// lostAndFound is what mkfs puts into the top directory of some file systems.
const lostAndFound = "lost+found"

// Recorded is what a repository's records say of an entry, but for its content.
type Recorded struct {
	Path     string // relative to the volume
	Mode     fs.FileMode
	ModTime  time.Time
	UID, GID uint32
}

// Compared is what a Comparison has found.
type Compared struct {
	Files, Bytes int64 // files with the recorded content, and their size
	// Mismatched is how many entries are missing, too many, or otherwise than recorded. Above 100,000, those that differ in content and in
	// attributes may count twice.
	Mismatched  int64
	Differences map[string]int64 // how many differ in what, such as "owner"
	Paths       []string         // some of the mismatched
	Example     string           // what is wrong with the first
}

// What an entry differs in.
const (
	differsMissing    = "missing"
	differsUnexpected = "unexpected" // the records do not have it
	differsType       = "type"
	differsContent    = "content" // or the size
	differsTarget     = "target"  // of a link
	differsMode       = "mode"
	differsOwner      = "owner"
	differsTime       = "time"
)

// Comparison holds a volume that was restored against the repository's records. Nothing may change the volume meanwhile; what is in it is not
// trusted. The records come in two parts, in this order: Entry for each entry, and Archive. Extended attributes are not compared, and no sockets,
// which nobody restores. It is not safe for concurrent use.
type Comparison struct {
	tree     descent
	report   func(files, bytes int64, path string)
	entries  int64
	read     int64  // bytes of the archive's files
	except   string // an entry of the top directory
	special  map[string]struct{}
	differ   map[uint64]struct{}
	seed     maphash.Seed
	compared Compared
}

// NewComparison begins a comparison of the volume that is open as dir. report is called for each entry and while large files are read, with
// numbers that grow: of what was looked at, and of bytes.
func NewComparison(dir *os.File, report func(entries, bytes int64, path string)) *Comparison {
	return &Comparison{
		tree: descent{levels: []descended{{dir: dir}}}, report: report, special: map[string]struct{}{}, differ: map[uint64]struct{}{}, seed: maphash.MakeSeed(),
		compared: Compared{Differences: map[string]int64{}},
	}
}

// Except leaves out an entry of the volume's top directory that is not the restore's, unless the records have it.
func (c *Comparison) Except(name string) { c.except = name }

// Close closes the directories that a comparison has opened, but for the volume itself.
func (c *Comparison) Close() { c.tree.close() }

// Compared returns what was found, after Archive has come to its end.
func (c *Comparison) Compared() Compared { return c.compared }

// isLossy reports whether a name is no UTF-8, or may stand for such a name: restic prints U+FFFD for bytes that are none.
func isLossy(name string) bool { return strings.ContainsRune(name, utf8.RuneError) }

// isSpecialFile reports whether an entry is a FIFO, a socket or a device.
func isSpecialFile(mode fs.FileMode) bool {
	return !mode.IsRegular() && !mode.IsDir() && mode.Type() != fs.ModeSymlink
}

// Entry compares an entry's mode, owner and time, and whether FIFOs and devices are there. Other entries that are missing are left to Archive,
// and so are those whose names are no UTF-8. The error is no difference.
func (c *Comparison) Entry(e Recorded) error {
	kind, isSpecial := e.Mode.Type(), isSpecialFile(e.Mode)
	if isLossy(e.Path) {
		return nil
	}
	if isSpecial {
		c.special[e.Path] = struct{}{}
	}
	if kind == fs.ModeSocket {
		return nil
	}
	var stat unix.Stat_t
	there, err := c.find(e.Path, &stat)
	if err != nil {
		return err
	}
	c.step(e.Path)
	switch got := fileMode(&stat); {
	case !there && isSpecial:
		c.differs(e.Path, differsMissing, "is missing")
	case there && isSpecial && got.Type() != kind:
		c.differs(e.Path, differsType, "is "+kindOf(&stat))
	case there && got.Type() == kind:
		c.attributes(e, &stat, 0)
	}
	return nil
}

// Archive compares the content of files and the targets of links with a tar archive of the volume, in which each directory comes before what is
// in it, and finds what is missing or too many. The error is no difference: an archive that has an error proves nothing.
func (c *Comparison) Archive(ctx context.Context, r io.Reader) error {
	c.tree.close()
	c.tree.levels[0].names = map[string]bool{}
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return c.tree.leave(0, c.unexpected)
		}
		if err != nil {
			return fmt.Errorf("read the archive of the snapshot: %w", err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := c.archived(ctx, header, archive); err != nil {
			return fmt.Errorf("compare %s: %w", strings.ToValidUTF8(header.Name, "\ufffd"), err)
		}
	}
}

// archived compares an entry of the archive.
func (c *Comparison) archived(ctx context.Context, header *tar.Header, content io.Reader) error {
	at := strings.Trim(header.Name, "/")
	if at == "" || at == "." { // the volume itself
		return nil
	}
	var stat unix.Stat_t
	there, err := c.find(at, &stat)
	if err != nil {
		return err
	}
	want := header.FileInfo().Mode()
	_, isSpecial := c.special[at] // restic archives some as empty files
	if isSpecial || isLossy(at) && there && isSpecialFile(fileMode(&stat)) && want.IsRegular() && header.Size == 0 {
		return nil
	}
	c.step(at)
	switch {
	case !there:
		c.differs(at, differsMissing, "is missing")
		return nil
	case fileMode(&stat).Type() != want.Type():
		c.differs(at, differsType, "is "+kindOf(&stat))
		return nil
	}
	switch {
	case want.IsRegular():
		err = c.content(ctx, at, header.Size, content)
	case want.Type() == fs.ModeSymlink:
		err = c.target(at, header.Linkname, stat.Size)
	case want.IsDir(): // it may be empty, and then nothing else leads into it
		_, err = c.tree.to(at, c.unexpected)
	default:
		err = fmt.Errorf("the archive has an entry of type %q: %w", header.Typeflag, errors.ErrUnsupported)
	}
	if isLossy(at) {
		precision := time.Duration(1)
		if header.ModTime.Nanosecond() == 0 { // restic rounds
			precision = time.Second
		}
		c.attributes(Recorded{at, want, header.ModTime, uint32(header.Uid), uint32(header.Gid)}, &stat, precision)
	}
	return err
}

// find looks at an entry. It follows no link, and notes that the directory has the entry.
func (c *Comparison) find(at string, stat *unix.Stat_t) (there bool, err error) {
	parent, err := c.tree.to(path.Dir(at), c.unexpected)
	if err != nil {
		return false, err
	}
	name := path.Base(at)
	if err := checkElement("name", name); err != nil {
		return false, err
	}
	if parent.dir != nil {
		err = lstat(parent.dir, name, at, stat)
		there = err == nil
	}
	if parent.names != nil {
		parent.names[name] = there
	}
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return there, err
}

// content compares a file, which find has found last. Its pages are dropped before, so that they come from the storage.
func (c *Comparison) content(ctx context.Context, at string, size int64, content io.Reader) error {
	file, err := openIn(c.tree.last().dir, path.Base(at), unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		c.differs(at, differsType, "is no regular file")
		return nil
	case info.Size() != size:
		c.differs(at, differsContent, fmt.Sprintf("has %d bytes, and the backup has %d", info.Size(), size))
		return nil
	}
	if err := unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop the file from the page cache: %w", err)
	}
	same, err := sameContent(ctx, io.TeeReader(content, counter(func(n int) {
		c.read += int64(n)
		c.report(c.entries, c.read, at)
	})), file)
	switch {
	case err != nil:
		return err
	case !same:
		c.differs(at, differsContent, "has another content than the backup")
		return nil
	}
	c.compared.Files++
	c.compared.Bytes += size
	return nil
}

// counter is a writer that counts.
type counter func(n int)

func (c counter) Write(p []byte) (int, error) {
	c(len(p))
	return len(p), nil
}

// target compares where a link leads to.
func (c *Comparison) target(at, want string, size int64) error {
	got, err := readLink(c.tree.last().dir, path.Base(at), size)
	if err == nil && got != want {
		c.differs(at, differsTarget, "leads elsewhere than in the backup")
	}
	return err
}

// attributes compares mode, owner and time. The mode of a link has no meaning.
func (c *Comparison) attributes(e Recorded, stat *unix.Stat_t, precision time.Duration) {
	const bits = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	mode, modified := fileMode(stat), time.Unix(stat.Mtim.Unix())
	if mode.Type() != fs.ModeSymlink && (mode^e.Mode)&bits != 0 {
		c.differs(e.Path, differsMode, fmt.Sprintf("has mode %s, and the backup has %s", mode&bits, e.Mode&bits))
	}
	if stat.Uid != e.UID || stat.Gid != e.GID {
		c.differs(e.Path, differsOwner, fmt.Sprintf("belongs to %d:%d, and in the backup to %d:%d", stat.Uid, stat.Gid, e.UID, e.GID))
	}
	if precision > 0 {
		modified = modified.Round(precision)
	}
	if !modified.Equal(e.ModTime) {
		c.differs(e.Path, differsTime, fmt.Sprintf("has time %s, and the backup has %s", modified.UTC().Format(time.RFC3339Nano), e.ModTime.UTC().Format(time.RFC3339Nano)))
	}
}

// underOtherNames finds what a directory has under another name only: a file system that does not tell A from a finds one file for both. What was
// listed is no longer in level.names as found.
func (c *Comparison) underOtherNames(at string, level *descended) {
	for _, name := range slices.Sorted(maps.Keys(level.names)) {
		if level.names[name] {
			c.differs(path.Join(at, name), differsMissing, "is missing: the file system took another entry for it")
		}
	}
}

// unexpected finds what is in a directory of the volume that the archive does not have. FIFOs, sockets and devices are not in archives.
func (c *Comparison) unexpected(at string, level *descended) error {
	if level.names == nil || level.dir == nil {
		return nil
	}
	if _, err := level.dir.Seek(0, io.SeekStart); err != nil {
		return err
	}
	for name, err := range Names(level.dir) {
		if err != nil {
			return fmt.Errorf("read the restored directory %s: %w", at, err)
		}
		if _, recorded := level.names[name]; recorded {
			level.names[name] = false
			continue
		}
		if at == "." && name == c.except {
			continue
		}
		var stat unix.Stat_t
		if err := lstat(level.dir, name, path.Join(at, name), &stat); err != nil {
			return err
		}
		mode := fileMode(&stat)
		if isSpecialFile(mode) {
			continue
		}
		if at == "." && name == lostAndFound && mode.IsDir() {
			empty, err := isEmpty(level.dir, name)
			if err != nil {
				return err
			}
			if empty {
				continue
			}
		}
		c.differs(path.Join(at, name), differsUnexpected, "is not in the backup")
	}
	c.underOtherNames(at, level)
	return nil
}

func isEmpty(parent *os.File, name string) (bool, error) {
	dir, err := openIn(parent, name, unix.O_DIRECTORY)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	return false, err
}

// step counts an entry that is looked at.
func (c *Comparison) step(at string) {
	c.entries++
	c.report(c.entries, c.read, at)
}

// differs notes a difference of an entry.
func (c *Comparison) differs(at, what, how string) {
	c.compared.Differences[what]++
	id := maphash.String(c.seed, at)
	if _, known := c.differ[id]; known {
		return
	}
	if len(c.differ) < maxRemembered {
		c.differ[id] = struct{}{}
	}
	c.compared.Mismatched++
	if len(c.compared.Paths) < maxDifferingPaths {
		c.compared.Paths = append(c.compared.Paths, at)
	}
	if c.compared.Example == "" {
		c.compared.Example = at + " " + how
	}
}

// fileMode returns the mode of an entry as package fs has it.
func fileMode(stat *unix.Stat_t) fs.FileMode {
	mode := fs.FileMode(stat.Mode & 0o777)
	for _, is := range [...]struct {
		bit  uint32
		flag fs.FileMode
	}{{unix.S_ISUID, fs.ModeSetuid}, {unix.S_ISGID, fs.ModeSetgid}, {unix.S_ISVTX, fs.ModeSticky}} {
		if stat.Mode&is.bit != 0 {
			mode |= is.flag
		}
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	default:
		mode |= fs.ModeIrregular
	}
	return mode
}
