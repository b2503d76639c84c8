package restorecontroller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// textHandler writes records as Velero's logger does by default, so that its readers and people's filters know them:
//
//	time="2026-11-21T22:50:03Z" level=info msg="Restored item" namespace=shop resource=pods
//
// with what the record has in alphabetical order, after time, level and message.
type textHandler struct {
	out    *sharedWriter
	level  slog.Leveler
	prefix string // the groups, each with a dot
	fields []field
}

type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

type field struct{ key, value string }

var _ slog.Handler = (*textHandler)(nil)

func newTextHandler(w io.Writer, level slog.Leveler) *textHandler {
	return &textHandler{out: &sharedWriter{w: w}, level: level}
}

// Enabled implements slog.Handler.
func (h *textHandler) Enabled(_ context.Context, level slog.Level) bool {
	return level >= h.level.Level()
}

// WithAttrs implements slog.Handler.
func (h *textHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.fields = slices.Clip(h.fields)
	for _, a := range attrs {
		with.fields = appendFields(with.fields, h.prefix, a)
	}
	return &with
}

// WithGroup implements slog.Handler.
func (h *textHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	with := *h
	with.prefix += name + "."
	return &with
}

// Handle implements slog.Handler.
func (h *textHandler) Handle(_ context.Context, r slog.Record) error {
	fields := slices.Clone(h.fields)
	r.Attrs(func(a slog.Attr) bool {
		fields = appendFields(fields, h.prefix, a)
		return true
	})
	slices.SortStableFunc(fields, func(a, b field) int { return strings.Compare(a.key, b.key) })
	var line bytes.Buffer
	writeField(&line, "time", r.Time.UTC().Format(time.RFC3339))
	writeField(&line, "level", levelName(r.Level))
	writeField(&line, "msg", r.Message)
	for _, f := range fields {
		writeField(&line, f.key, f.value)
	}
	line.WriteByte('\n')
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	_, err := h.out.w.Write(line.Bytes())
	return err
}

func appendFields(fields []field, prefix string, a slog.Attr) []field {
	value := a.Value.Resolve()
	if value.Kind() == slog.KindGroup {
		if a.Key != "" {
			prefix += a.Key + "."
		}
		for _, inner := range value.Group() {
			fields = appendFields(fields, prefix, inner)
		}
		return fields
	}
	if a.Key == "" {
		return fields
	}
	return append(fields, field{prefix + a.Key, value.String()})
}

func writeField(line *bytes.Buffer, key, value string) {
	if line.Len() > 0 {
		line.WriteByte(' ')
	}
	line.WriteString(key)
	line.WriteByte('=')
	if strings.ContainsFunc(value, needsQuotes) {
		value = strconv.Quote(value)
	}
	line.WriteString(value)
}

// needsQuotes is logrus's rule.
func needsQuotes(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-._/@^+", r)
}

func levelName(level slog.Level) string {
	switch {
	case level < slog.LevelInfo:
		return "debug"
	case level < slog.LevelWarn:
		return "info"
	case level < slog.LevelError:
		return "warning"
	default:
		return "error"
	}
}

// journal is the log of one restore: a temporary file without a name, which goes with the process.
type journal struct {
	*slog.Logger

	file *os.File
}

func newJournal(dir string, level slog.Leveler) (*journal, error) {
	file, err := os.CreateTemp(dir, "restore-*.log")
	if err != nil {
		return nil, fmt.Errorf("make a file for the log: %w", err)
	}
	if err := os.Remove(file.Name()); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("make a file for the log: %w", err)
	}
	return &journal{Logger: slog.New(newTextHandler(file, level)), file: file}, nil
}

// say logs a line that others have put together, such as a warning of Velero's results.
func (j *journal) say(ctx context.Context, level slog.Level, line string) {
	_ = j.Handler().Handle(ctx, slog.NewRecord(time.Now(), level, line, 0))
}

// add puts an earlier process's log into this one, all of it or nothing.
func (j *journal) add(log io.Reader) error {
	end, err := j.file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := io.Copy(j.file, log); err != nil {
		_, _ = j.file.Seek(end, io.SeekStart)
		return errors.Join(err, j.file.Truncate(end))
	}
	return nil
}

// content is what was logged so far.
func (j *journal) content() (io.Reader, error) {
	size, err := j.file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	return io.NewSectionReader(j.file, 0, size), nil
}

// Close gives the file back.
func (j *journal) Close() error { return j.file.Close() }
