package worker

import (
	"bytes"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
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

// escapes matches what follows ESC in terminal sequences: [ ... (colours, clear line), ] ... BEL (titles), and short ones.
var escapes = regexp.MustCompile(`\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[ -/]*[0-~])?`)

// text returns the kept bytes as lines of printable text, tailSize bytes at most.
func (t *tail) text() string {
	b, cut := t.buf, t.cut
	if len(b) > tailSize {
		b, cut = b[len(b)-tailSize:], true
	}
	if _, rest, ok := bytes.Cut(b, []byte("\n")); cut && ok && len(rest) > 0 {
		b = rest // half a line, which may begin inside a character or an escape sequence
	}
	b = escapes.ReplaceAll(b, nil)
	s := strings.Map(printable, strings.ToValidUTF8(string(b), string(utf8.RuneError)))
	return lastBytes(strings.TrimSpace(s), tailSize)
}

// printable maps a character to what a log or a status field may show, -1 for nothing. A carriage return counts as a
// newline: restic writes one where it would overwrite its status on a terminal.
func printable(r rune) rune {
	switch {
	case r == '\r' || r == '\n':
		return '\n'
	case unicode.IsSpace(r):
		return ' '
	case unicode.IsGraphic(r):
		return r
	}
	return -1
}

// lastBytes returns the end of s, n bytes at most, without cutting a character.
func lastBytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	s = s[len(s)-n:]
	for len(s) > 0 && !utf8.RuneStart(s[0]) {
		s = s[1:]
	}
	return s
}
