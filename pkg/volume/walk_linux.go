package volume

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxOpenLevels is how many directories a worker keeps open on its way down. Those further up are closed and found again
// through ".." on the way back, so that neither the depth of a tree nor the length of its paths has a limit.
const maxOpenLevels = 32

// direntBuffer is what one getdents call may return, in bytes: about 2,000 entries.
const direntBuffer = 64 << 10

// usage is what a walk has added up.
type usage struct {
	Usage
	changed int64 // bytes in files whose inode changed after walk.since
	newest  int64 // the latest change of any inode, nanoseconds since 1970
}

func (u *usage) add(v usage) {
	u.Bytes += v.Bytes
	u.Files += v.Files
	u.Skipped += v.Skipped
	u.changed += v.changed
	u.newest = max(u.newest, v.newest)
}

// walk is one measurement of one tree by several workers. A worker that has nothing to do gets a part of what another one
// has before it: the subdirectory nearest to the root, or a batch of the entries of a big directory.
type walk struct {
	done    <-chan struct{} // closed: stop
	since   int64           // nanoseconds since 1970
	sizes   bool            // count files by their size, and mount points as skipped
	workers int32
	idle    atomic.Int32 // workers that wait for a part and have not been promised one
	parts   chan part    // has room for one for each worker, so that sending what was promised never blocks
	links   linkSet
	step    func()            // nil or called for each part of a directory that is read; safe for concurrent use
	onEntry func(name string) // nil but in tests: called before an entry is looked at
}

// part is work for an idle worker.
type part struct {
	dir     level
	entries []byte // of getdents; nil: the directory has to be read
}

// level is a directory on a worker's way down.
type level struct {
	fd      int // -1: closed for now
	id      inode
	subdirs names // not visited yet
}

// worker walks subtrees, one at a time.
type worker struct {
	*walk
	usage usage
	stack []level
	buf   []byte
	stat  unix.Statx_t
}

func (w *walk) newWorker() *worker {
	return &worker{walk: w, buf: make([]byte, direntBuffer)}
}

// run walks the tree below a directory that is open as fd, and closes it. The error is that of the directory itself:
// what cannot be read below it is counted.
func (w *walk) run(fd, workers int) (usage, error) {
	w.workers = int32(workers)
	w.parts = make(chan part, workers)
	first := w.newWorker()
	root, err := first.top(fd)
	if err != nil {
		return usage{}, err
	}

	all := []*worker{first}
	var group sync.WaitGroup
	for range workers - 1 {
		other := w.newWorker()
		all = append(all, other)
		group.Go(other.serve)
	}
	err = first.read(&root)
	first.tree(root)
	first.serve()
	group.Wait()
	if err != nil {
		return usage{}, err
	}

	var sum usage
	for _, each := range all {
		sum.add(each.usage)
	}
	return sum, nil
}

// top makes a level of the directory where the walk begins.
func (w *worker) top(fd int) (level, error) {
	if err := w.statFd(fd); err != nil {
		_ = unix.Close(fd)
		return level{}, err
	}
	w.usage.newest = changeTime(&w.stat)
	return level{fd: fd, id: inodeOf(&w.stat)}, nil
}

// serve does what others share until nobody has work any more. The last one to become idle sends all home.
func (w *worker) serve() {
	if w.idle.Add(1) == w.workers {
		close(w.parts)
	}
	for p := range w.parts {
		if p.entries != nil {
			w.visitAll(&p.dir, p.entries)
		} else if err := w.read(&p.dir); err != nil {
			w.skip(err)
		}
		w.tree(p.dir)
		if w.idle.Add(1) == w.workers {
			close(w.parts)
		}
	}
}

// promise reserves an idle worker, if there is one, for the next part.
func (w *walk) promise() bool {
	for {
		n := w.idle.Load()
		if n == 0 {
			return false
		}
		if w.idle.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// tree walks a subtree whose top was read.
func (w *worker) tree(top level) {
	w.stack = append(w.stack[:0], top)
	for len(w.stack) > 0 {
		w.share()
		last := &w.stack[len(w.stack)-1]
		name := last.subdirs.next()
		if name == nil || w.stopped() {
			w.pop()
			continue
		}
		dir, ok := w.enter(last, name)
		if !ok {
			continue
		}
		if err := w.read(&dir); err != nil {
			w.skip(err)
		}
		w.push(dir)
	}
}

// share gives a subtree to an idle worker unless it is the only one left: the one nearest to the root, which is likely to
// be the biggest.
func (w *worker) share() {
	if w.idle.Load() == 0 {
		return
	}
	for i := range w.stack {
		from := &w.stack[i]
		if from.fd < 0 || from.subdirs.empty() {
			continue
		}
		if i == len(w.stack)-1 && from.subdirs.single() || !w.promise() {
			return
		}
		dir, ok := w.enter(from, from.subdirs.next())
		if !ok {
			w.idle.Add(1)
			return
		}
		w.parts <- part{dir: dir}
		return
	}
}

// enter opens a subdirectory. What cannot be opened is counted.
func (w *worker) enter(parent *level, name cstring) (level, bool) {
	fd, err := openatRaw(parent.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if err != nil {
		w.skip(err)
		return level{}, false
	}
	if err := w.statFd(fd); err != nil || isMountpoint(&w.stat, parent.id) {
		w.skipMount()
		_ = unix.Close(fd)
		return level{}, false
	}
	return level{fd: fd, id: inodeOf(&w.stat)}, true
}

func (w *worker) push(dir level) {
	w.stack = append(w.stack, dir)
	if far := len(w.stack) - 1 - maxOpenLevels; far >= 0 && w.stack[far].fd >= 0 {
		_ = unix.Close(w.stack[far].fd)
		w.stack[far].fd = -1
	}
}

// pop goes back to the parent directory.
func (w *worker) pop() {
	last := len(w.stack) - 1
	dir := w.stack[last]
	w.stack = w.stack[:last]
	if last > 0 && w.stack[last-1].fd < 0 && !w.stopped() {
		if err := w.reopen(&w.stack[last-1], dir.fd); err != nil {
			// Somebody moved the directory: its former parents, all closed, cannot be found again.
			w.usage.Skipped++
			w.stack = w.stack[:0]
		}
	}
	if dir.fd >= 0 {
		_ = unix.Close(dir.fd)
	}
}

var errMoved = errors.New("directory was moved")

func (w *worker) reopen(parent *level, child int) error {
	fd, err := openat(child, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return err
	}
	if err := w.statFd(fd); err != nil || inodeOf(&w.stat) != parent.id {
		_ = unix.Close(fd)
		return errMoved
	}
	parent.fd = fd
	return nil
}

// read measures the files in a directory and takes down its subdirectories.
func (w *worker) read(dir *level) error {
	for !w.stopped() {
		n, err := getdents(dir.fd, w.buf)
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		if w.step != nil {
			w.step()
		}
		if n < direntBuffer/2 || !w.shareEntries(dir, w.buf[:n]) {
			w.visitAll(dir, w.buf[:n])
		}
	}
	return nil
}

// shareEntries gives a batch of a directory's entries to an idle worker, together with the buffer that they lie in.
func (w *worker) shareEntries(dir *level, entries []byte) bool {
	if !w.promise() {
		return false
	}
	fd, err := unix.FcntlInt(uintptr(dir.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		w.idle.Add(1)
		return false
	}
	w.parts <- part{dir: level{fd: fd, id: dir.id}, entries: entries}
	w.buf = make([]byte, direntBuffer)
	return true
}

func (w *worker) visitAll(dir *level, entries []byte) {
	for entry, rest := nextEntry(entries); entry.name != nil; entry, rest = nextEntry(rest) {
		w.visit(dir, entry)
	}
}

// visit measures a regular file and takes down a subdirectory. It does not look at links, pipes, sockets and devices.
func (w *worker) visit(dir *level, entry dirent) {
	if entry.kind != unix.DT_REG && entry.kind != unix.DT_DIR && entry.kind != unix.DT_UNKNOWN || entry.isDots() {
		return
	}
	if w.onEntry != nil {
		w.onEntry(entry.name.String())
	}
	if err := statAt(dir.fd, entry.name, &w.stat); err != nil {
		w.skip(err)
		return
	}
	if isMountpoint(&w.stat, dir.id) {
		w.skipMount()
		return
	}
	w.usage.newest = max(w.usage.newest, changeTime(&w.stat))
	switch w.stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		dir.subdirs.add(entry.name)
	case unix.S_IFREG:
		w.file(dir.fd, entry.name)
	}
}

// file adds up a regular file, which w.stat describes.
func (w *worker) file(dir int, name cstring) {
	if w.stat.Nlink > 1 && !w.links.add(inodeOf(&w.stat)) {
		return
	}
	bytes := int64(w.stat.Size)
	if bytes > maxSingleBlob && !w.sizes {
		bytes = w.dataBytes(dir, name)
	}
	w.usage.Files++
	w.usage.Bytes += bytes
	if changeTime(&w.stat) > w.since {
		w.usage.changed += bytes
	}
}

// skip counts what cannot be read. What vanished or became something else in the meantime is not worth counting.
func (w *worker) skip(err error) {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		w.usage.Skipped++
	}
}

// skipMount counts what is not looked at because something else is mounted there.
func (w *worker) skipMount() {
	if w.sizes {
		w.usage.Skipped++
	}
}

func (w *walk) stopped() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

func changeTime(stat *unix.Statx_t) int64 {
	return stat.Ctime.Sec*int64(time.Second) + int64(stat.Ctime.Nsec)
}

// inode is one file, whatever its names.
type inode struct {
	major, minor uint32
	ino          uint64
}

func inodeOf(stat *unix.Statx_t) inode {
	return inode{major: stat.Dev_major, minor: stat.Dev_minor, ino: stat.Ino}
}

// linkSet remembers the files with several names. Its memory grows with them only.
type linkSet struct {
	mu   sync.Mutex
	seen map[inode]struct{}
}

// add returns false if the file is in the set already.
func (s *linkSet) add(file inode) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.seen[file]; ok {
		return false
	}
	if s.seen == nil {
		s.seen = make(map[inode]struct{})
	}
	s.seen[file] = struct{}{}
	return true
}
