package worker

import (
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
)

func TestExitErrorMessage(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		err  ExitError
		want string
	}{
		{"code", ExitError{Program: "restic", Code: 1}, "restic: exit code 1"},
		{
			"code and stderr",
			ExitError{Program: "restic", Code: 12, Stderr: "Fatal: wrong password or no key found"},
			"restic: exit code 12: Fatal: wrong password or no key found",
		},
		{
			"last lines of stderr",
			ExitError{Program: "restic", Code: 1, Stderr: "one\ntwo\n\nthree\n  \nfour"},
			"restic: exit code 1: two; three; four",
		},
		{"signal", ExitError{Program: "restic", Code: -1, Signal: syscall.SIGTERM, Stderr: "x"}, "restic: ended by signal: terminated: x"},
		{
			"out of memory",
			ExitError{Program: "restic", Code: -1, Signal: syscall.SIGKILL, OutOfMemory: true},
			"restic: killed: out of memory",
		},
		{
			"long stderr",
			ExitError{Program: "restic", Code: 1, Stderr: strings.Repeat("é", 2000)},
			"restic: exit code 1: …" + strings.Repeat("é", errorBytes/2),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := tt.err.Error(); got != tt.want {
				t.Errorf("Error() = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		write string
		want  string
	}{
		{"nothing", "", ""},
		{"plain", "a\nb\n", "a\nb"},
		{"restic's interrupted message", "\x1b[2Ksignal interrupt received, cleaning up\r\n", "signal interrupt received, cleaning up"},
		{"overwritten line", "10 %\r20 %\rdone", "10 %\n20 %\ndone"},
		{"colours and title", "\x1b[1;31mred\x1b[0m \x1b]0;title\x07text \x1b(Bx\x1b", "red text x"},
		{"control characters", "a\x00b\x07c\x7fd\u009b1mtab\tend", "abcd1mtab end"},
		{"invalid UTF-8", "a\xffb", "a\ufffdb"},
		{"direction overrides", "gpj\u202etxe", "gpjtxe"},
		{"only the end", strings.Repeat("old\n", 5000) + "new", strings.Repeat("old\n", 1023) + "new"},
		{"one long line", strings.Repeat("é", 10000), strings.Repeat("é", tailSize/2)},
		{"grows by replacing", strings.Repeat("\xffa", 5000), strings.Repeat("\ufffda", tailSize/4)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, size := range []int{1, 7, 1000, 100000} {
				var tl tail
				for rest := tt.write; rest != ""; {
					n := min(size, len(rest))
					_, _ = tl.Write([]byte(rest[:n]))
					rest = rest[n:]
				}
				if got := tl.text(); got != tt.want {
					t.Errorf("written %d bytes at a time: %.100q of %d bytes, want %.100q of %d", size, got, len(got), tt.want, len(tt.want))
				}
				if cap(tl.buf) > 4*tailSize {
					t.Errorf("buffer of %d bytes", cap(tl.buf))
				}
			}
		})
	}
}

func FuzzTail(f *testing.F) {
	f.Add([]byte("\x1b[2Kx\r\ny"), 3)
	f.Fuzz(func(t *testing.T, data []byte, repeat int) {
		var tl tail
		for range min(max(repeat, 1), 3000) {
			_, _ = tl.Write(data)
		}
		got := tl.text()
		if len(got) > tailSize || !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r != '\n' && r < ' ' || r == 0x7f }) {
			t.Errorf("text() = %q", got)
		}
	})
}
