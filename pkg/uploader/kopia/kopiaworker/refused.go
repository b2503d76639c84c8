package kopiaworker

import (
	"os"
	"sync"
	"time"

	kopiafs "github.com/kopia/kopia/fs"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// refused counts what a volume does not take of entries, whether it says so or not: SMB drops modes without an error.
type refused struct {
	mu    sync.Mutex
	first string // path of the first entry, by name
	count uploader.Refused
}

// timeGrain is the coarsest resolution of times on a volume: FAT counts in 2 s.
const timeGrain = 2 * time.Second

// check counts what a restored entry lacks. Others than root cannot be expected to give files away.
func (r *refused) check(path string, info os.FileInfo, e kopiafs.Entry, modified time.Time) {
	owner := os.Geteuid() == 0 && !hasOwner(info, e.Owner())
	mode := info.Mode()&os.ModeSymlink == 0 && (info.Mode()^e.Mode())&kopiafs.ModBits != 0
	wrongTime := info.ModTime().Sub(modified).Abs() > timeGrain
	if !owner && !mode && !wrongTime {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if owner {
		r.count.Owners++
	}
	if mode {
		r.count.Modes++
	}
	if wrongTime {
		r.count.Times++
	}
	if path = inRoot(path); r.first == "" || path < r.first {
		r.first = path
	}
}

func (r *refused) counts() uploader.Refused {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count.Example = protocol.Printable(r.first)
	return r.count
}
