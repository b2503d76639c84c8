package main

import (
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/screen"
)

// quietFor is how long content comes without a word: what is small is there before.
const quietFor = 3 * time.Second

// countedBody counts what was read of an answer.
type countedBody struct {
	io.ReadCloser
	n atomic.Int64
}

// Read reads from the body.
func (c *countedBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// showProgress writes to w how far the content of an answer is, from offset on, a line each ten seconds, until stop is called. Of a directory nobody
// knows the size before.
func (a *fileAnswer) showProgress(w io.Writer, name string, offset int64) (stop func()) {
	body := &countedBody{ReadCloser: a.Body}
	a.Body = body
	var left int64
	if size, err := strconv.ParseInt(a.Header.Get(protocol.HeaderSize), 10, 64); err == nil && a.Header.Get(protocol.HeaderType) == protocol.TypeFile {
		left = size - offset
	}
	tracker, lines, began := progress.NewTracker(progress.Options{}), screen.NewLines(w), time.Now()
	tracker.Begin(1)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticks := time.NewTicker(time.Second)
		defer ticks.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticks.C:
			}
			tracker.Report(progress.Reading{Stage: progress.StageTransferring, BytesDone: body.n.Load(), TotalBytes: left, TotalFinal: left > 0})
			now := time.Now()
			if now.Sub(began) < quietFor {
				continue
			}
			s := tracker.Snapshot()
			if s.BytesDone += offset; left > 0 {
				s.TotalBytes += offset
			}
			// A terminal that is gone is no reason to end: the file is what counts.
			_ = lines.Print(&describe.View{At: now, Volumes: []describe.Volume{{Volume: name, Progress: s}}})
		}
	}()
	return func() { close(done); <-ended }
}
