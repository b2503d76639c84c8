package uploader

import "os"

// DiffRequest names two snapshots of one repository.
type DiffRequest struct {
	Repository Repository
	From, To   string // snapshot ids
}

// Change is an entry that two snapshots do not have alike. At least one of From and To is set, and both have the same path.
type Change struct {
	From *Entry // nil: the entry was added
	To   *Entry // nil: the entry was removed

	Content bool // both are files or links, and the repository's records of their content differ
	Other   bool // the records differ in something that Entry does not have, or that the data path does not tell
}

// Difference is one respect in which an entry has changed.
type Difference string

// The differences, in the order of Change.Differences.
const (
	DiffersInType    Difference = "type" // a file has become a directory, or the like
	DiffersInContent Difference = "content"
	DiffersInSize    Difference = "size"
	DiffersInMode    Difference = "mode"  // the permissions
	DiffersInOwner   Difference = "owner" // user or group
	DiffersInTime    Difference = "time"  // of the last change
	DiffersInOther   Difference = "other"
)

// Entry returns the newest state of the entry.
func (c *Change) Entry() *Entry {
	if c.To != nil {
		return c.To
	}
	return c.From
}

// Differences returns in which respects an entry differs; none: it was added or removed, or is the same in both snapshots.
func (c *Change) Differences() []Difference {
	if c.From == nil || c.To == nil {
		return nil
	}
	from, to := c.From, c.To
	var all []Difference
	for _, d := range []struct {
		is   bool
		name Difference
	}{
		{from.Mode.Type() != to.Mode.Type(), DiffersInType},
		{c.Content, DiffersInContent},
		{from.Size != to.Size, DiffersInSize},
		{from.Mode&^os.ModeType != to.Mode&^os.ModeType, DiffersInMode},
		{from.UID != to.UID || from.GID != to.GID, DiffersInOwner},
		{!from.ModTime.Equal(to.ModTime), DiffersInTime},
		{c.Other, DiffersInOther},
	} {
		if d.is {
			all = append(all, d.name)
		}
	}
	return all
}
