package worker

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLines(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		writes  []string
		want    []string
		dropped int
	}{
		{name: "nothing"},
		{name: "one line", writes: []string{"abc\n"}, want: []string{"abc"}},
		{name: "several lines in one write", writes: []string{"a\nb\nc\n"}, want: []string{"a", "b", "c"}},
		{name: "torn line", writes: []string{"a", "b", "", "c\n"}, want: []string{"abc"}},
		{name: "torn before the newline", writes: []string{"abc", "\ndef\n"}, want: []string{"abc", "def"}},
		{name: "torn and merged", writes: []string{"a\nb", "c\nd", "\n"}, want: []string{"a", "bc", "d"}},
		{name: "last line without newline", writes: []string{"a\nb"}, want: []string{"a", "b"}},
		{name: "empty lines", writes: []string{"\n\na\n\n"}, want: []string{"", "", "a", ""}},
		{name: "carriage returns stay", writes: []string{"a\r\nb\rc\n"}, want: []string{"a\r", "b\rc"}},
		{name: "invalid UTF-8 and NUL pass", writes: []string{"\xff\x00\xfe\n"}, want: []string{"\xff\x00\xfe"}},
		{name: "longest line", writes: []string{"12345678\n"}, want: []string{"12345678"}},
		{name: "longest line, torn", writes: []string{"1234", "5678", "\n"}, want: []string{"12345678"}},
		{name: "too long, whole", writes: []string{"123456789\nok\n"}, want: []string{"ok"}, dropped: 1},
		{name: "too long, torn at the limit", writes: []string{"12345678", "9\nok\n"}, want: []string{"ok"}, dropped: 1},
		{name: "too long, begun", writes: []string{"a\n1234567890", "1234567890", "\nok"}, want: []string{"a", "ok"}, dropped: 1},
		{name: "too long at the end", writes: []string{"ok\n1234567890"}, want: []string{"ok"}, dropped: 1},
		{name: "two too long", writes: []string{"1234567890\n1234567890\n"}, dropped: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, dropped := split(8, tt.writes...)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
			if dropped != tt.dropped {
				t.Errorf("dropped = %d, want %d", dropped, tt.dropped)
			}
		})
	}
}

func split(limit int, writes ...string) (got []string, dropped int) {
	l := newLines(func(line []byte) {
		got = append(got, string(line))
		_ = append(line, "overwritten by a careless consumer"...)
	}, limit)
	for _, w := range writes {
		_, _ = l.Write([]byte(w))
	}
	l.Close()
	return got, l.dropped
}

// FuzzLines holds the splitter, fed in any chunks, against splitting the whole at once.
func FuzzLines(f *testing.F) {
	f.Add("", uint8(1))
	f.Add("a\nbc\n\nd", uint8(2))
	f.Add("{\"percent_done\":0.5}\r\n\x1b[2K\xff\xff\n", uint8(3))
	f.Add(strings.Repeat("x", 40)+"\nok\n"+strings.Repeat("y", 16), uint8(15))
	f.Fuzz(func(t *testing.T, data string, chunk uint8) {
		const limit = 16
		var want []string
		wantDropped := 0
		for line := range strings.Lines(data) {
			if line = strings.TrimSuffix(line, "\n"); len(line) > limit {
				wantDropped++
			} else {
				want = append(want, line)
			}
		}
		var writes []string
		for rest, size := data, int(chunk%20); rest != ""; size = (size*7 + 3) % 20 { // sizes differ, and 0 is among them
			n := min(size, len(rest))
			writes, rest = append(writes, rest[:n]), rest[n:]
		}
		got, dropped := split(limit, writes...)
		if diff := cmp.Diff(want, got); diff != "" || dropped != wantDropped {
			t.Errorf("dropped = %d, want %d; lines (-want +got):\n%s", dropped, wantDropped, diff)
		}
	})
}

// TestLinesMemory is not parallel because it measures the memory of the process.
func TestLinesMemory(t *testing.T) {
	chunk := bytes.Repeat([]byte("x"), readSize)
	delivered := 0
	l := newLines(func([]byte) { delivered++ }, MaxLine)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 1 << 30 / len(chunk) {
		_, _ = l.Write(chunk)
	}
	_, _ = l.Write([]byte("\n"))
	runtime.ReadMemStats(&after)
	if l.dropped != 1 || delivered != 0 {
		t.Errorf("a line of 1 GiB: dropped = %d, delivered = %d, want 1, 0", l.dropped, delivered)
	}
	// append doubles and then grows by quarters up to MaxLine: less than 6 MaxLine in all, once.
	if got := after.TotalAlloc - before.TotalAlloc; got > 8*MaxLine {
		t.Errorf("a line of 1 GiB allocated %d bytes", got)
	}

	for range MaxLine / len(chunk) {
		_, _ = l.Write(chunk)
	}
	_, _ = l.Write([]byte("\n"))
	if delivered != 1 {
		t.Errorf("a line of MaxLine was not delivered")
	}
	if cap(l.torn) > keepBuffer {
		t.Errorf("buffer of %d bytes kept after a long line", cap(l.torn))
	}
}

func TestLinesDoNotAllocate(t *testing.T) {
	l := newLines(func([]byte) {}, MaxLine)
	chunk := statusLines(readSize)
	if n := testing.AllocsPerRun(100, func() { _, _ = l.Write(chunk) }); n != 0 {
		t.Errorf("%v allocations for each write", n)
	}
}

// statusLines returns n bytes of restic's status lines; the last one is torn.
func statusLines(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, `{"message_type":"status","seconds_elapsed":11,"percent_done":0.5,"total_files":8037,"files_done":%d,`+
			`"total_bytes":2141545926,"bytes_done":%d,"current_files":["/data/some/where/file-%d"]}`+"\n", i, i*12345, i)
	}
	return b.Bytes()[:n]
}

func BenchmarkLines(b *testing.B) {
	delivered := 0
	l := newLines(func([]byte) { delivered++ }, MaxLine)
	chunk := statusLines(readSize)
	b.SetBytes(int64(len(chunk)))
	b.ReportAllocs()
	for b.Loop() {
		_, _ = l.Write(chunk)
	}
	b.ReportMetric(float64(delivered)/b.Elapsed().Seconds(), "lines/s")
}
