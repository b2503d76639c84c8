package restorecontroller

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"
)

// TestTextIsVeleros compares with lines of Velero's own logs, and with what logrus does to values.
func TestTextIsVeleros(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 22, 50, 3, 999, time.FixedZone("CET", 3600))
	tests := map[string]struct {
		log  func(*slog.Logger) *slog.Logger
		attr []any
		msg  string
		want string
	}{
		"plain":    {msg: "starting restore", want: `msg="starting restore"`},
		"one word": {msg: "done", want: `msg=done`},
		"sorted": {
			log: func(l *slog.Logger) *slog.Logger { return l.With("restore", "velero/r1") }, msg: "Restored item",
			attr: []any{"namespace", "shop", "groupResource", "deployments.apps"}, want: `msg="Restored item" groupResource=deployments.apps namespace=shop restore=velero/r1`,
		},
		"error": {attr: []any{"error", errors.New("no such \"thing\"\nhere")}, msg: "x", want: `msg=x error="no such \"thing\"\nhere"`},
		"group": {
			log: func(l *slog.Logger) *slog.Logger { return l.WithGroup("a").With("b", 1) }, msg: "x",
			attr: []any{slog.Group("c", "d", true), slog.Group("", "e", ""), slog.Attr{}}, want: `msg=x a.b=1 a.c.d=true a.e=`,
		},
		"hostile name": {attr: []any{"name", "a\x00b\x1b[31m level=error"}, msg: "x", want: `msg=x name="a\x00b\x1b[31m level=error"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			log := slog.New(newTextHandler(&out, slog.LevelInfo))
			if tc.log != nil {
				log = tc.log(log)
			}
			r := slog.NewRecord(at, slog.LevelWarn, tc.msg, 0)
			r.Add(tc.attr...)
			if err := log.Handler().Handle(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if got, want := out.String(), `time="2026-11-21T21:50:03Z" level=warning `+tc.want+"\n"; got != want {
				t.Errorf("got  %swant %s", got, want)
			}
		})
	}
}

func TestLevels(t *testing.T) {
	t.Parallel()
	for level, want := range map[slog.Level]string{slog.LevelDebug: "debug", slog.LevelInfo: "info", slog.LevelWarn: "warning", slog.LevelError: "error", slog.LevelError + 4: "error"} {
		if got := levelName(level); got != want {
			t.Errorf("%v: got %s, want %s", level, got, want)
		}
	}
	if newTextHandler(io.Discard, slog.LevelInfo).Enabled(t.Context(), slog.LevelDebug) {
		t.Error("says what it should not")
	}
}

// TestJournalTakesLinesFromMany writes from several goroutines: lines stay whole, and reading does not end the writing.
func TestJournalTakesLinesFromMany(t *testing.T) {
	t.Parallel()
	j, err := newJournal(t.TempDir(), slog.LevelInfo)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for range 2 {
		var writers sync.WaitGroup
		for range 8 {
			writers.Go(func() {
				for range 100 {
					j.Info("Restored item", "name", "settings")
				}
			})
		}
		writers.Wait()
	}
	content, err := j.content()
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(content)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte(`level=info msg="Restored item" name=settings`+"\n")); n != 1600 {
		t.Errorf("%d whole lines, want 1600", n)
	}
}
