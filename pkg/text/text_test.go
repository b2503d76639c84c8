package text

import (
	"math"
	"strings"
	"testing"
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

func TestShorten(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ got, want string }{
		{Shorten("größe", 7), "größe"},
		{Shorten("größer als das", 5), "gr…"},
		{Shorten("größer", 6), "gr…"},
		{Shorten("abc", 2), ""},
		{Shorten("a\xffb", 9), "a\ufffdb"},
		{ShortenMiddle("open a/b/c/d: permission denied", 100), "open a/b/c/d: permission denied"},
		{ShortenMiddle("open a/b/c/d: permission denied", 24), "open a/b/c/d: … denied"},
		{Line("a\nb", 10), `a\nb`},
		{Line("a\nbcdef", 6), `a\n…`},
		{Tail("größe", 3), "ße"},
		{Tail("größe", 2), "e"},
		{Lines([]byte("\x1b[31mred\x1b[0m\r50 %\r\nan\x00end\t\xff ")), "red\n50 %\n\nanend \ufffd"},
	} {
		if test.got != test.want {
			t.Errorf("got %q, want %q", test.got, test.want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b[2J\xff\u202e'", 7)
	f.Add(strings.Repeat("é…\n", 50), 40)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit &= 0xfff
		notGraphic := func(r rune) bool { return !unicode.IsGraphic(r) }
		clean := Clean(s)
		if again := Clean(clean); again != clean {
			t.Errorf("Clean(%q) = %q, cleaned again %q", s, clean, again)
		}
		line := Line(s, limit)
		if want := Shorten(clean, limit); line != want {
			t.Errorf("Line(%q, %d) = %q, want %q", s, limit, line, want)
		}
		for name, got := range map[string]string{"Clean": clean, "Line": line, "Lines": strings.ReplaceAll(Lines([]byte(s)), "\n", "")} {
			if strings.ContainsFunc(got, notGraphic) {
				t.Errorf("%s(%q) = %q is not for a terminal", name, s, got)
			}
		}
		for name, got := range map[string]string{"Line": line, "Shorten": Shorten(s, limit), "ShortenMiddle": ShortenMiddle(s, limit), "Tail": Tail(clean, limit)} {
			if len(got) > limit || !utf8.ValidString(got) {
				t.Errorf("%s(%q, %d) = %q", name, s, limit, got)
			}
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
}
