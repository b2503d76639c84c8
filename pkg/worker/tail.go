package worker

import (
	"bytes"

	"github.com/plimsoll-io/plimsoll/pkg/text"
)

// tailSize is how many bytes of the end of stderr are kept.
const tailSize = 4 << 10

// tail keeps the last bytes that were written to it, in constant memory. Not safe for concurrent use.
type tail struct {
	buf []byte // at most 2 tailSize, so that bytes are moved once per tailSize written
	cut bool   // the begin of what was written is gone
}

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > tailSize {
		p, t.cut = p[len(p)-tailSize:], true
	}
	if len(t.buf)+len(p) > 2*tailSize {
		kept := copy(t.buf, t.buf[len(t.buf)-tailSize:])
		t.buf, t.cut = t.buf[:kept], true
	}
	t.buf = append(t.buf, p...)
	return n, nil
}

// text returns the kept bytes as lines of printable text, tailSize bytes at most.
func (t *tail) text() string {
	b, cut := t.buf, t.cut
	if len(b) > tailSize {
		b, cut = b[len(b)-tailSize:], true
	}
	if _, rest, ok := bytes.Cut(b, []byte("\n")); cut && ok && len(rest) > 0 {
		b = rest // half a line, which may begin inside a character or an escape sequence
	}
	return text.Tail(text.Lines(b), tailSize)
}
