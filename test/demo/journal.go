package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// tellsWithin is how long a volume may take from the first time its object tells how much there is to do until its end
// without a number in between. The agent writes each second; restic needs one or two to open its repository, and on a machine
// that is busy with something else ten times as long.
const tellsWithin = 30 * time.Second

// journal remembers what the objects have said, and notes what they must never say.
type journal struct {
	volumes map[types.UID]*record
	wrong   []error
}

// record is one object's history.
type record struct {
	last   report
	known  time.Time          // when it first told how much there is to do
	values map[int64]struct{} // all bytes done that it told, but for 0
}

func newJournal() *journal { return &journal{volumes: map[types.UID]*record{}} }

// note takes a report that came at some time. Reports of a watch that begins again may repeat themselves.
func (j *journal) note(at time.Time, r report) {
	v, known := j.volumes[r.uid]
	if !known {
		v = &record{values: map[int64]struct{}{}}
		j.volumes[r.uid] = v
	}
	if known && v.last.resourceVersion == r.resourceVersion {
		return
	}
	before := v.last
	v.last = r
	if before.ended() {
		j.complain("%s was changed after it had ended as %s", r.label, before.phase)
		return
	}
	j.judgeNumbers(before, r)
	if r.progress.BytesDone > 0 {
		v.values[r.progress.BytesDone] = struct{}{}
	}
	if v.known.IsZero() && r.progress.TotalBytes > 0 {
		v.known = at
	}
	if took := at.Sub(v.known); r.ended() && !v.known.IsZero() && took >= tellsWithin && len(v.values) < 2 {
		j.complain("%s took %s and told of no bytes before its end", r.label, took.Round(time.Second))
	}
}

// judgeNumbers asks of the numbers that they can be true.
func (j *journal) judgeNumbers(before, r report) {
	switch p := r.progress; {
	case p.BytesDone < before.progress.BytesDone:
		j.complain("%s fell from %d to %d bytes", r.label, before.progress.BytesDone, p.BytesDone)
	case p.BytesDone > p.TotalBytes && p.TotalBytes > 0:
		j.complain("%s says that %d of %d bytes are done", r.label, p.BytesDone, p.TotalBytes)
	case p.BytesDone == p.TotalBytes && p.TotalBytes > 0 && !r.completed():
		j.complain("%s says that all bytes are done, but is %s", r.label, r.state())
	case r.status.total > 0 && (r.status.done != p.BytesDone || r.status.total != p.TotalBytes):
		j.complain("%s says %d of %d bytes in status.progress and %d of %d in the annotation", r.label,
			r.status.done, r.status.total, p.BytesDone, p.TotalBytes)
	}
}

func (j *journal) complain(format string, args ...any) {
	j.wrong = append(j.wrong, fmt.Errorf(format, args...))
}

// ended says how many objects have ended.
func (j *journal) ended() int {
	n := 0
	for _, v := range j.volumes {
		if v.last.ended() {
			n++
		}
	}
	return n
}

// failures returns what failed and what was said wrongly, nil if all is well.
func (j *journal) failures() error {
	all := slices.Clone(j.wrong)
	for _, v := range j.volumes {
		if v.last.ended() && !v.last.completed() {
			all = append(all, fmt.Errorf("%s ended as %s: %s", v.last.label, v.last.phase, v.last.message))
		}
	}
	return errors.Join(all...)
}
