package text

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestCount(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 files", 1: "1 file", 2: "2 files"} {
		if got := Count(n, "file", "files"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestShortPaths(t *testing.T) {
	t.Parallel()
	deep := "var/lib/" + strings.Repeat("directory/", 30)
	for name, test := range map[string]struct{ message, want string }{
		"short":   {"open a/b: permission denied", "open a/b: permission denied"},
		"in text": {"open " + deep + "ibdata1: permission denied", "open var/lib/directory/di…/directory/directory/directory/directory/directory/ibdata1: permission denied"},
		"quoted":  {`open "/` + deep + `a", which is gone`, `open "/var/lib/directory/d…rectory/directory/directory/directory/directory/directory/a", which is gone`},
		"two":     {deep + "a, " + deep + "b", "var/lib/directory/di…rectory/directory/directory/directory/directory/directory/a, var/lib/directory/di…rectory/directory/directory/directory/directory/directory/b"},
		"letters": {strings.Repeat("é/", 60) + "ü", "é/é/é/é/é/é/é/é/é/é/…" + strings.Repeat("é/", 29) + "ü"},
		"address": {"repository s3:https://store.example/" + deep, "repository s3:https://store.example/" + deep},
		"a hash":  {"snapshot " + strings.Repeat("0123456789abcdef", 8), "snapshot " + strings.Repeat("0123456789abcdef", 8)},
	} {
		got := ShortPaths(test.message)
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
		if !utf8.ValidString(got) {
			t.Errorf("%s: %q is not UTF-8", name, got)
		}
	}
}
