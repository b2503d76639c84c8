package terminal

import (
	"strings"
	"testing"
)

func TestScreen(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ in, want string }{
		"lines":                {"one\r\ntwo", "one\ntwo"},
		"wraps":                {"0123456789ab", "0123456789\nab"},
		"wraps late":           {"0123456789\r\nab", "0123456789\nab"},
		"scrolls":              {"1\r\n2\r\n3\r\n4\r\n5", "2\n3\n4\n5"},
		"cursor":               {"\x1b[2;3Hx\x1b[A\x1b[Dy\x1b[4Gz\x1b[3d!\x1b[Hh", "h yz\n  x\n    !"},
		"erases to the right":  {"abcdef\x1b[3G\x1b[K", "ab"},
		"erases to the left":   {"abcdef\x1b[3G\x1b[1K", "   def"},
		"erases characters":    {"abcdef\x1b[3G\x1b[2X", "ab  ef"},
		"erases below":         {"a\r\nb\r\nc\x1b[2;1H\x1b[J", "a"},
		"erases all":           {"a\r\nb\x1b[2J", ""},
		"deletes characters":   {"abcdef\x1b[3G\x1b[2P", "abef"},
		"inserts characters":   {"abcdef\x1b[3G\x1b[2@", "ab  cdef"},
		"deletes a line":       {"a\r\nb\r\nc\x1b[2;1H\x1b[M", "a\nc"},
		"inserts a line":       {"a\r\nb\r\nc\x1b[2;1H\x1b[L", "a\n\nb\nc"},
		"scrolls a region":     {"a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[S", "a\nc\n\nd"},
		"scrolls a region up":  {"a\r\nb\r\nc\r\nd\x1b[2;3r\x1b[T", "a\n\nb\nd"},
		"reverse index":        {"a\r\nb\x1b[H\x1bM", "\na\nb"},
		"repeats":              {"-\x1b[4b", "-----"},
		"tabs and backspace":   {"a\tb\b\bc", "a      cb"},
		"the alternate screen": {"main\x1b[?1049h\x1b[Hother", "other"},
		"and back":             {"main\x1b[?1049h\x1b[Hother\x1b[?1049l", "main"},
		"titles are not text":  {"a\x1b]0;title\ab\x1b]0;title\x1b\\c", "abc"},
		"a title ends at once": {"\x1b]0;title\x1b\\a\ab", "ab"},
		"modes are not text":   {"\x1b[?25la\x1b[?2026$pb\x1b[>4;2mc", "abc"},
		"wide text":            {"█▌░größe", "█▌░größe"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole, pieces := New(10, 4), New(10, 4)
			_, _ = whole.Write([]byte(test.in))
			for i := range len(test.in) {
				_, _ = pieces.Write([]byte(test.in[i : i+1]))
			}
			if got := whole.String(); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if got := pieces.String(); got != test.want {
				t.Errorf("byte by byte: got %q, want %q", got, test.want)
			}
			if got := whole.Unknown(); len(got) > 0 {
				t.Errorf("did not understand %q", got)
			}
		})
	}
}

func TestColors(t *testing.T) {
	t.Parallel()
	s := New(10, 1)
	_, _ = s.Write([]byte("a\x1b[1;31mb\x1b[22;39mc\x1b[36md\x1b[0me\x1b[32mf\x1b[m "))
	want := []Cell{{'a', 0, false}, {'b', 31, true}, {'c', 0, false}, {'d', 36, false}, {'e', 0, false}, {'f', 32, false}, {' ', 0, false}}
	for i, c := range s.Cells()[0][:len(want)] {
		if c != want[i] {
			t.Errorf("cell %d is %+v, want %+v", i, c, want[i])
		}
	}
}

func FuzzScreen(f *testing.F) {
	f.Add("a\x1b[2;3r\x1b[9999S\x1b[5;1H\x1b[99L\x1b]x")
	f.Fuzz(func(t *testing.T, in string) {
		s := New(7, 3)
		_, _ = s.Write([]byte(in))
		if lines := strings.Count(s.String(), "\n"); lines > 2 {
			t.Errorf("%d lines", lines+1)
		}
	})
}
