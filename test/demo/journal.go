package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// reportsWithin is how long a volume may take from the first report of its total to its end without a report of bytes in
// between. The agent writes each second; restic needs one or two to open its repository, and ten times as long on a busy
// machine.
const reportsWithin = 30 * time.Second

// journal remembers the reports of all objects, and collects those that must never occur.
type journal struct {
	volumes map[types.UID]*record
	wrong   []error // reports that must never occur
}

// record is one object's history.
type record struct {
	last   report
	known  time.Time          // when it first reported its total
	values map[int64]struct{} // the reported counts of bytes, except 0
}

func newJournal() *journal { return &journal{volumes: map[types.UID]*record{}} }

// note takes a report that arrived at a time. A watch that begins again may repeat reports.
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
	j.checkNumbers(before, r)
	if r.progress.BytesDone > 0 {
		v.values[r.progress.BytesDone] = struct{}{}
	}
	if v.known.IsZero() && r.progress.TotalBytes > 0 {
		v.known = at
	}
	if took := at.Sub(v.known); r.ended() && !v.known.IsZero() && took >= reportsWithin && len(v.values) < 2 {
		j.complain("%s took %s and reported no bytes before its end", r.label, took.Round(time.Second))
	}
}

// checkNumbers complains about numbers that contradict each other or an earlier report.
func (j *journal) checkNumbers(before, r report) {
	switch p := r.progress; {
	case p.BytesDone < before.progress.BytesDone:
		j.complain("%s fell from %d to %d bytes", r.label, before.progress.BytesDone, p.BytesDone)
	case p.BytesDone > p.TotalBytes && p.TotalBytes > 0:
		j.complain("%s says that %d of %d bytes are done", r.label, p.BytesDone, p.TotalBytes)
	case p.BytesDone == p.TotalBytes && p.TotalBytes > 0 && !r.completed():
		j.complain("%s says that all bytes are done, but is %s", r.label, r.progress.State)
	case r.status.total > 0 && (r.status.done != p.BytesDone || r.status.total != p.TotalBytes):
		j.complain("%s says %d of %d bytes in status.progress and %d of %d in the annotation", r.label,
			r.status.done, r.status.total, p.BytesDone, p.TotalBytes)
	}
}

func (j *journal) complain(format string, args ...any) {
	j.wrong = append(j.wrong, fmt.Errorf(format, args...))
}

// failures returns the volumes that have failed and the reports that must never occur; nil if there are none.
func (j *journal) failures() error {
	all := slices.Clone(j.wrong)
	for _, v := range j.volumes {
		if v.last.ended() && !v.last.completed() {
			all = append(all, fmt.Errorf("%s ended as %s: %s", v.last.label, v.last.phase, v.last.message))
		}
	}
	return errors.Join(all...)
}
