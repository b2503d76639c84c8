package main

import (
	"strings"
	"testing"
)

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

func TestCheckSpace(t *testing.T) {
	t.Parallel()
	if err := checkSpace(t.TempDir(), 1<<60); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("got %v, want an error that names TMPDIR", err)
	}
}
