package describe

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

func TestClean(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ in, want string }{
		"plain":                 {"data/größe 数.txt", "data/größe 数.txt"},
		"new line and tab":      {"a\nb\tc\r", `a\nb\tc\r`},
		"escape sequence":       {"\x1b[2J\x1b]0;title\a", `\x1b[2J\x1b]0;title\a`},
		"eight bit CSI":         {"\u009b31m", `\u009b31m`},
		"direction of writing":  {"gpj.\u202eexe\u2066", `gpj.\u202eexe\u2066`},
		"invisible":             {"a\u200bb\ufeff", `a\u200bb\ufeff`},
		"line separator":        {"a\u2028b", `a\u2028b`},
		"invalid UTF-8":         {"a\xffb\xc3", `a\xffb\xc3`},
		"a surrogate":           {"\xed\xa0\x80", `\xed\xa0\x80`},
		"a written replacement": {"\ufffd", "\ufffd"},
		"quotes":                {`it's "that" \ there`, `it's "that" \ there`},
		"delete":                {"a\x7f", `a\x7f`},
		"tags":                  {"\U000e0041", `\U000e0041`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Clean(test.in); got != test.want {
				t.Errorf("Clean(%q) = %q, want %q", test.in, got, test.want)
			}
		})
	}
}

func FuzzClean(f *testing.F) {
	f.Add("a\x1b[2J\xff\u202e'")
	f.Fuzz(func(t *testing.T, s string) {
		clean := Clean(s)
		if !utf8.ValidString(clean) || strings.ContainsFunc(clean, func(r rune) bool { return !unicode.IsGraphic(r) }) {
			t.Errorf("Clean(%q) = %q is not for a terminal", s, clean)
		}
		if again := Clean(clean); again != clean {
			t.Errorf("Clean(%q) = %q, cleaned again %q", s, clean, again)
		}
	})
}

func TestBytes(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]int64{
		"0 B": 0, "1023 B": 1023, "1.0 KiB": 1024, "1.5 KiB": 1536, "1023.9 KiB": 1<<20 - 1, "1.0 MiB": 1 << 20,
		"12.3 GiB": 12<<30 + 330<<20, "7.9 EiB": math.MaxInt64, "-5 B": -5,
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
	if got := Rate(1 << 20); got != "1.0 MiB/s" {
		t.Errorf("Rate(1 MiB) = %q", got)
	}
}

func TestTimes(t *testing.T) {
	t.Parallel()
	seconds := func(n int64) *int64 { return &n }
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct{ got, want string }{
		{ETA(nil), "not known yet"},
		{ETA(seconds(0)), "0s"},
		{ETA(seconds(130)), "2m10s"},
		{ETA(seconds(-100)), "0s"},
		{ETA(seconds(math.MaxInt64)), "more than a year"},
		{ETA(seconds(math.MinInt64)), "0s"},
		{Age(now, time.Time{}), "never"},
		{Age(now, now.Add(-3*time.Hour-12*time.Minute)), "3h12m"},
		{Age(now, now.Add(time.Minute)), "0s"},
		{PercentOf(42, true), "42%"},
		{PercentOf(0, false), "-"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}
