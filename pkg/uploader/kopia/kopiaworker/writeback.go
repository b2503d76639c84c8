package kopiaworker

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// writebackStep is how many bytes of a file are written before the kernel is asked to send them to the disk.
const writebackStep = 8 << 20

// writeback sends the bytes of a large file to the disk while the rest of it is written, so that the flush at the end of a
// restore has less to wait for. The kernel by itself begins after 30 s, or when a tenth of the memory is dirty (vm.dirty_* in
// Documentation/admin-guide/sysctl/vm.rst). It proves nothing: the flush does.
type writeback struct {
	path          string
	file          *os.File // nil: not opened yet, or not to be opened
	written, sent int64    // bytes from the start of the file
}

// advance takes note of the next n bytes, which are not written yet: those of the calls before are.
func (w *writeback) advance(n int64) {
	if w.written-w.sent >= writebackStep {
		w.send()
	}
	w.written += n
}

// send makes the kernel begin with what was written since the last call. An error only means that it begins later.
func (w *writeback) send() {
	from := w.sent
	w.sent = w.written
	if w.file == nil {
		file, err := os.OpenFile(w.path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if err != nil {
			return
		}
		w.file = file
	}
	_ = unix.SyncFileRange(int(w.file.Fd()), from, w.written-from, unix.SYNC_FILE_RANGE_WRITE)
}

// end sends the rest of a large file. Small ones the kernel writes together.
func (w *writeback) end() {
	if w.file == nil {
		return
	}
	w.send()
	_ = w.file.Close()
}
