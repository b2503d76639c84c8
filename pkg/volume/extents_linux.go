package volume

import (
	"errors"

	"golang.org/x/sys/unix"
)

// maxSingleBlob is the size in bytes up to which a file's size tells what is in it. restic preallocates a file when its
// first blob arrives (docs/contracts/restic-kopia.md 8); a file with one blob is full by the same write. restic's chunker cuts
// nothing shorter than 512 KiB but the end of a file (chunker.MinSize of github.com/restic/chunker), so files up to
// that size have one blob.
const maxSingleBlob = 512 << 10

// stopEvery is after how many extents of one file a canceled walk is noticed.
const stopEvery = 1024

// dataBytes returns how many bytes of a file, which w.stat describes, hold data. Preallocated space and holes do not count.
func (w *worker) dataBytes(dir int, name cstring) int64 {
	estimate := min(int64(w.stat.Size), int64(w.stat.Blocks)*512)

	// Not blocking: the file may have become a pipe since it was looked at.
	fd, err := openatRaw(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC)
	if errors.Is(err, unix.ENOENT) {
		return 0
	}
	if err != nil {
		w.skip(err)
		return estimate
	}
	defer unix.Close(fd) //nolint:errcheck // opened for reading: nothing is lost
	sum, err := w.extents(fd)
	if err != nil {
		return estimate
	}
	return sum
}

// extents adds up the data extents of an open file. The error says that the file system does not know them.
func (w *worker) extents(fd int) (int64, error) {
	var sum, offset int64
	for i := 1; ; i++ {
		data, err := unix.Seek(fd, offset, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return sum, nil
		}
		if err != nil {
			return 0, err
		}
		hole, err := unix.Seek(fd, data, unix.SEEK_HOLE)
		if errors.Is(err, unix.ENXIO) {
			return sum, nil // cut off in the meantime
		}
		if err != nil {
			return 0, err
		}
		sum += hole - data
		offset = hole
		if i%stopEvery == 0 && w.stopped() {
			return sum, nil
		}
	}
}
