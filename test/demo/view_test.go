package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

func TestLinesAreFew(t *testing.T) {
	t.Parallel()
	var got []string
	l := newLines(func(format string, args ...any) { got = append(got, fmt.Sprintf(format, args...)) }, "backup")
	for done := range int64(100) {
		l.show(said(progress.StateTransferring, done<<20, 100<<20))
	}
	l.show(said(progress.StateCompleted, 100<<20, 100<<20))
	l.show(said(progress.StateCompleted, 100<<20, 100<<20))
	want := "backup   pod/volume      Transferring   0 %  0.0/100.0 MiB"
	if len(got) != 11 || got[0] != want {
		t.Errorf("got %d lines, the first one %q; want 11 and %q", len(got), got, want)
	}
}

func TestLinesTellWhyItFailed(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	l := newLines(printer(&out, func() float64 { return 2.25 }), "restore")
	failed := said(progress.StateFailed, 5, 10)
	failed.message = "disk full"
	l.show(failed)
	if diff := cmp.Diff("   2.2 s  restore  pod/volume      Failed        50 %  5/10 B  disk full\n", out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestBars(t *testing.T) {
	t.Parallel()
	for name, color := range map[string]bool{"color": true, "no color": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			b := newBars(&out, color, []string{"pod/volume", "pod/other"})
			b.show(said(progress.StateTransferring, 30<<20, 100<<20))
			b.show(said(progress.StateFailed, 50<<20, 100<<20))
			b.close() // pod/other has not ended
			got := out.String()
			for _, want := range []string{"pod/volume", "Failed", "50 %", "50.0/100.0 MiB", "pod/other", "New"} {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in %q", want, got)
				}
			}
			if painted := strings.Contains(got, "\x1b[31mFailed"); painted != color {
				t.Errorf("painted: %t, want %t: %q", painted, color, got)
			}
		})
	}
}

func TestParseSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"200MiB": 200 << 20, "2GiB": 2 << 30, "1.5Gi": 3 << 29, "500MB": 500e6, "1073741824": 1 << 30, "1MiB": 1 << 20,
	} {
		if got, err := parseSize(text); got != want || err != nil {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "much", "1", "-2GiB", "200m", "1023KiB"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: got %d, want an error", text, got)
		}
	}
}

func TestFormatSize(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 3 << 29: "1.5 GiB", 1 << 62: "4096.0 PiB"} {
		if got := formatSize(n); got != want {
			t.Errorf("%d: got %q, want %q", n, got, want)
		}
	}
}

func TestCheckSpace(t *testing.T) {
	t.Parallel()
	if err := checkSpace(t.TempDir(), 1<<60); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("got %v, want an error that names TMPDIR", err)
	}
}
