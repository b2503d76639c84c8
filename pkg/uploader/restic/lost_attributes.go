package restic

import (
	"strings"
	"sync"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// lostAttributes counts the entries whose extended attributes, such as ACLs and capabilities, the volume does not take. restic takes
// them for restored: handleXattrErr in its node_xattr.go drops the error (restic 0.14 to 0.19).
type lostAttributes struct {
	volume string // as restic calls it

	mu    sync.Mutex
	last  string // restic sets all attributes of an entry one after the other
	first string // path of the first entry, by name
	count int64
}

// selinuxLabel is on every file of a node with SELinux. What a volume has of labels is for its mount to say, not for its files, where it takes none.
const selinuxLabel = "security.selinux"

// add takes an attribute that was refused.
func (l *lostAttributes) add(path, name string) {
	if name == selinuxLabel {
		return
	}
	path = strings.TrimPrefix(strings.TrimPrefix(path, l.volume), "/")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count > 0 && path == l.last {
		return
	}
	l.last = path
	l.count++
	if l.count == 1 || path < l.first {
		l.first = path
	}
}

func (l *lostAttributes) counts() uploader.Refused {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count == 0 {
		return uploader.Refused{}
	}
	example := l.first
	if example == "" {
		example = "."
	}
	return uploader.Refused{Attributes: l.count, Example: printable(example)}
}
