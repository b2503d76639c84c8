package restic

import (
	"bytes"
	"regexp"
	"strings"
	"sync"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// stderr keeps of restic's stderr what an error message needs, in bounded memory: the last lines of plain text, and the
// message of exit_error, in which restic repeats its fatal error since 0.18. Errors of single items go to itemFailed.
type stderr struct {
	mu             sync.Mutex
	plain          []string
	exit           string
	crash          string // the first line of what Go says of a crash; a stack trace follows, which helps nobody here
	diskFull       bool
	itemFail       func(item, text string)
	itemGone       func(item string) // may be nil
	attribute      func(said string) // takes what follows noAttribute; may be nil
	fullRepository func(line string) // called when a file of the repository cannot be stored for that reason; may be nil

	said     func(line string) // takes each line of plain text; may be nil
	fullDisk func()            // called once, when a write fails because the disk is full; may be nil
}

// maxPlainLines bounds how many lines of plain text are kept. restic's longest fatal error, of a lock, has four.
const maxPlainLines = 8

// line takes one line. restic clears the terminal's line before some of them, even in a pipe.
func (e *stderr) line(line []byte) {
	whole := bytes.TrimPrefix(bytes.TrimLeft(line, "\r"), []byte("\x1b[2K"))
	line = bytes.TrimSpace(whole)
	if len(line) == 0 {
		return
	}
	var m message
	if !looksLikeJSON(line) || !m.decode(line) {
		if e.said != nil {
			e.said(string(whole))
		}
		e.text(string(whole))
		return
	}
	switch m.Type {
	case typeError:
		// The scanner names the same item once more; of what has vanished, from 0.17 on, it alone speaks.
		switch {
		case m.During != "scan":
			e.failed(m.Item, m.errorText())
		case e.itemGone != nil && uploader.SaysVanished(m.errorText()):
			e.itemGone(m.Item)
		}
	case typeExitError:
		e.mu.Lock()
		var lines []string
		for line := range strings.Lines(m.Message) {
			lines = appendLine(lines, strings.TrimSuffix(line, "\n"))
		}
		e.exit = strings.Join(lines, "\n")
		e.mu.Unlock()
	}
}

// stackFrame is the second line of each frame of the stack trace that restic prints behind some errors. The first one has the function.
var stackFrame = regexp.MustCompile(`^\t\S+\.go:\d+$`)

// appendLine appends a line of an error to those before it, and leaves stack traces out: they have more lines than are kept, and the
// error before them is what people need.
func appendLine(lines []string, line string) []string {
	if !stackFrame.MatchString(line) {
		return append(lines, strings.TrimSpace(line))
	}
	if last := len(lines) - 1; last >= 0 && !strings.Contains(lines[last], " ") {
		return lines[:last]
	}
	return lines
}

// text takes a line that is not JSON. Before 0.17.1 restore reports the errors of single items so, and before 0.19 backup the attributes that it
// cannot read.
func (e *stderr) text(whole string) {
	line := strings.TrimSpace(whole)
	if item, text, ok := strings.Cut(strings.TrimPrefix(line, ignoring), ": "); ok && strings.HasPrefix(line, ignoring) {
		e.failed(item, text)
		return
	}
	if said, ok := strings.CutPrefix(line, noAttribute); ok && e.attribute != nil {
		e.attribute(said)
		return
	}
	if strings.HasPrefix(line, "Save(<") && isDiskFull(line) && e.fullRepository != nil {
		e.fullRepository(line)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.crash == "" && (strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ")) {
		e.crash = line
	}
	e.plain = appendLine(e.plain, whole)
	if len(e.plain) > maxPlainLines {
		e.plain = append(e.plain[:0], e.plain[len(e.plain)-maxPlainLines:]...)
	}
}

const ignoring = "ignoring error for "

func (e *stderr) failed(item, text string) {
	if e.itemFail != nil {
		e.itemFail(item, text)
	}
	if !isDiskFull(text) {
		return
	}
	e.mu.Lock()
	first := !e.diskFull
	e.diskFull = true
	e.mu.Unlock()
	if first && e.fullDisk != nil {
		e.fullDisk()
	}
}

// fatal is what restic said of the error that ended it, without the errors of single items.
func (e *stderr) fatal() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.exit != "" {
		return e.exit
	}
	if e.crash != "" {
		return e.crash
	}
	return strings.Join(e.plain, "\n")
}

// isDiskFull reports whether an error's text is that of a full disk or an exhausted quota. The text ends with it: paths,
// which anyone may name as they like, stand before.
func isDiskFull(text string) bool {
	return strings.HasSuffix(text, "no space left on device") || strings.HasSuffix(text, "disk quota exceeded")
}
