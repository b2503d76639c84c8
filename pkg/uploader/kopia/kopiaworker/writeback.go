package kopiaworker

import (
	"os"

	"golang.org/x/sys/unix"
)

// writebackStep is how many bytes of a file are written before the kernel is asked to send them to the disk.
const writebackStep = 8 << 20

// writeback sends the bytes of a large file to the disk while the rest of it is written, so that the flush at the end of a
// restore has less to wait for. The kernel by itself begins after 30 s, or when a tenth of the memory is dirty (vm.dirty_* in
// Documentation/admin-guide/sysctl/vm.rst). It proves nothing: the flush does.
type writeback struct {
	file          *os.File
	written, sent int64 // bytes from the start of the file
}

// advance takes note of n bytes that were written.
func (w *writeback) advance(n int64) {
	if w.written += n; w.written-w.sent >= writebackStep {
		w.send()
	}
}

// send makes the kernel begin with what was written since the last call. An error only means that it begins later.
func (w *writeback) send() {
	_ = unix.SyncFileRange(int(w.file.Fd()), w.sent, w.written-w.sent, unix.SYNC_FILE_RANGE_WRITE)
	w.sent = w.written
}

// end sends the rest of a large file. Small ones the kernel writes together.
func (w *writeback) end() {
	if w.sent > 0 {
		w.send()
	}
}
