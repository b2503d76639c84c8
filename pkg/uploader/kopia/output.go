package kopia

import (
	"context"
	"errors"
	"io"
	"log/slog"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/internal/protocol"
)

// output takes what a worker says. It is fed by one goroutine.
type output struct {
	sink   progress.Sink
	logger *slog.Logger
	hide   func(string) string         // replaces secrets in a text
	stop   context.CancelCauseFunc     // ends the worker
	entry  func(uploader.Entry) error  // nil: none is expected
	change func(uploader.Change) error // nil: none is expected
	data   io.Writer                   // nil: none is expected

	snapshot  func(protocol.Snapshot)  // nil: none is expected
	forgotten func(protocol.Forgotten) // nil: none is expected

	last      progress.Reading
	received  int64 // bytes of data
	changes   int64
	snapshots int64
	refused   error // what entry or data returned
	result    *protocol.Result
	failure   *protocol.Failure
	malformed error // the first thing that made no sense; nothing counts after it
}

var (
	errAfterEnd = errors.New("it goes on after its last word")
	errUnasked  = errors.New("it sends what nobody has asked for")
)

// line takes one line of stdout.
func (o *output) line(line []byte) {
	if o.malformed != nil || o.refused != nil {
		return
	}
	m, err := protocol.Decode(line)
	switch {
	case err != nil:
	case o.result != nil || o.failure != nil:
		err = errAfterEnd
	case m.Entry != nil && o.entry == nil, m.Change != nil && o.change == nil, m.Data != nil && o.data == nil, m.Snapshot != nil && o.snapshot == nil, m.Forgotten != nil && o.forgotten == nil:
		err = errUnasked
	}
	if err != nil {
		o.malformed = err
		o.stop(err)
		return
	}
	switch {
	case m.Reading != nil:
		o.last = *m.Reading
		o.last.LastError, o.last.Message = o.hide(o.last.LastError), o.hide(o.last.Message)
		o.sink.Report(o.last)
	case m.Note != nil:
		o.log(*m.Note)
	case m.Entry != nil:
		o.handOn(o.entry(*entryOf(m.Entry)))
	case m.Change != nil:
		o.changes++
		o.handOn(o.change(uploader.Change{From: entryOf(m.Change.From), To: entryOf(m.Change.To), Content: m.Change.Content}))
	case m.Data != nil:
		o.received += int64(len(m.Data))
		_, err := o.data.Write(m.Data)
		o.handOn(err)
	case m.Snapshot != nil:
		o.snapshots++
		o.snapshot(*m.Snapshot)
	case m.Forgotten != nil:
		o.forgotten(*m.Forgotten)
	case m.Result != nil:
		o.result = m.Result
	default:
		o.failure = m.Failure
	}
}

func entryOf(e *protocol.Entry) *uploader.Entry {
	if e == nil {
		return nil
	}
	return &uploader.Entry{Path: string(e.Path), Mode: e.Mode, Size: e.Size, ModTime: e.ModTime, Target: string(e.Target), UID: e.UID, GID: e.GID}
}

// handOn ends the worker when its work is not wanted any more.
func (o *output) handOn(err error) {
	if err != nil {
		o.refused = err
		o.stop(err)
	}
}

func (o *output) log(n protocol.Note) {
	text := o.hide(n.Text)
	if n.Level >= slog.LevelWarn {
		o.logger.Warn("Warning of kopia", "text", text)
		return
	}
	o.logger.Debug("Message of kopia", "text", text)
}

// finish reports that all is done, after the worker has exited without an error.
func (o *output) finish(op protocol.Operation) {
	if op != protocol.OpBackup && op != protocol.OpRestore {
		return
	}
	o.last.Stage, o.last.CurrentItem = progress.StageFinishing, ""
	o.last.BytesDone, o.last.TotalBytes, o.last.TotalFinal = o.result.TotalBytes, o.result.TotalBytes, true
	o.last.BytesUploaded = max(o.result.BytesUploaded, o.last.BytesUploaded)
	o.last.Errors, o.last.Vanished = o.result.Errors, o.result.Vanished
	o.sink.Report(o.last)
}
