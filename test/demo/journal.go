package main

import (
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// standsStill is for how long a volume may move bytes without its object telling of any. The agent writes each second.
const standsStill = 5 * time.Second

// journal remembers what the objects have said, and notes what they must never say.
type journal struct {
	volumes map[types.UID]*record
	wrong   []error
}

// record is one object's history.
type record struct {
	last   report
	moving time.Time          // when it was first seen moving bytes
	values map[int64]struct{} // the bytes done that were seen before the end, but for 0
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
	switch {
	case before.ended():
		j.complain("%s was changed after it had ended as %s", r.label, before.phase)
		return
	case r.progress.BytesDone < before.progress.BytesDone:
		j.complain("%s fell from %d to %d bytes", r.label, before.progress.BytesDone, r.progress.BytesDone)
	case r.progress.BytesDone > r.progress.TotalBytes && r.progress.TotalBytes > 0:
		j.complain("%s says that %d of %d bytes are done", r.label, r.progress.BytesDone, r.progress.TotalBytes)
	case r.progress.BytesDone == r.progress.TotalBytes && r.progress.TotalBytes > 0 && !r.completed():
		j.complain("%s says that all bytes are done, but is %s", r.label, r.state())
	case r.status.total > 0 && (r.status.done != r.progress.BytesDone || r.status.total != r.progress.TotalBytes):
		j.complain("%s says %d of %d bytes in status.progress and %d of %d in the annotation", r.label,
			r.status.done, r.status.total, r.progress.BytesDone, r.progress.TotalBytes)
	}
	if v.moving.IsZero() && r.progress.State == progress.StateTransferring {
		v.moving = at
	}
	if r.ended() {
		j.judgeMovement(at, v)
	} else if r.progress.BytesDone > 0 {
		v.values[r.progress.BytesDone] = struct{}{}
	}
}

// judgeMovement asks of a volume that took a while that it has told of bytes on the way, twice at least with the end.
func (j *journal) judgeMovement(at time.Time, v *record) {
	if took := at.Sub(v.moving); !v.moving.IsZero() && took >= standsStill && len(v.values) == 0 {
		j.complain("%s moved bytes for %s without telling of any", v.last.label, took.Round(time.Second))
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
	all := j.wrong
	for _, v := range j.volumes {
		if v.last.ended() && !v.last.completed() {
			all = append(all, fmt.Errorf("%s ended as %s: %s", v.last.label, v.last.phase, v.last.message))
		}
	}
	return errors.Join(all...)
}

// values returns how many different amounts of bytes were told before the end, of all volumes together.
func (j *journal) values() int {
	n := 0
	for _, v := range j.volumes {
		n += len(v.values)
	}
	return n
}
