package worker

import (
	"bytes"
	"slices"
)

// keepBuffer is the capacity in bytes up to which the buffer for torn lines is kept for the next one.
const keepBuffer = 64 << 10

// lines cuts what is written to it into lines. It holds one torn line of at most limit bytes, and never copies a line
// that lies whole in one write. Not safe for concurrent use.
type lines struct {
	deliver func(line []byte)
	limit   int // longest line in bytes
	dropped int // lines that were longer

	torn     []byte // the begin of a line whose end is not there yet
	skipping bool   // inside a line that is too long already
}

func newLines(deliver func(line []byte), limit int) *lines {
	if deliver == nil {
		deliver = func([]byte) {}
	}
	return &lines{deliver: deliver, limit: limit}
}

// Write never fails.
func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			l.carry(p)
			return n, nil
		}
		l.finish(p[:end])
		p = p[end+1:]
	}
}

// Close delivers the last line if it had no newline.
func (l *lines) Close() {
	if l.skipping || len(l.torn) > 0 {
		l.finish(nil)
	}
}

// finish ends a line whose last part is p.
func (l *lines) finish(p []byte) {
	switch {
	case l.skipping || len(l.torn)+len(p) > l.limit:
		l.dropped++
	case len(l.torn) == 0:
		l.deliver(slices.Clip(p))
	default:
		l.torn = append(l.torn, p...)
		l.deliver(slices.Clip(l.torn))
	}
	l.skipping = false
	l.clear()
}

// carry keeps p, which has no newline, for the next write.
func (l *lines) carry(p []byte) {
	if l.skipping {
		return
	}
	if len(l.torn)+len(p) > l.limit {
		l.skipping = true
		l.clear()
		return
	}
	l.torn = append(l.torn, p...)
}

// clear empties the buffer, and gives one back that a long line has made big.
func (l *lines) clear() {
	l.torn = l.torn[:0]
	if cap(l.torn) > keepBuffer {
		l.torn = nil
	}
}
