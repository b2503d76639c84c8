package volume

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// benchFiles is how many files BenchmarkMeasure walks over; VOLUME_BENCH_FILES=1000000 for a large volume.
const benchFiles = 50_000

// BenchmarkMeasure compares a walk with what people would use: du -s --apparent-size on the same tree, in turn with
// it. The cache is warm. The ratio of the wall times is x-du.
func BenchmarkMeasure(b *testing.B) {
	if _, err := exec.LookPath("du"); err != nil {
		b.Skip("no du to compare with")
	}
	files := benchFiles
	if text := os.Getenv("VOLUME_BENCH_FILES"); text != "" {
		var err error
		if files, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	tests := []struct {
		name    string
		perDir  int
		perTree int // directories in a directory
	}{
		{name: "tree", perDir: 100, perTree: 100},
		{name: "flat", perDir: files, perTree: 1},
	}
	for _, tt := range tests {
		b.Run(fmt.Sprintf("%s/files=%d", tt.name, files), func(b *testing.B) {
			dir := b.TempDir()
			for i := range files {
				d := i / tt.perDir
				path := filepath.Join(dir, strconv.Itoa(d/tt.perTree), strconv.Itoa(d%tt.perTree))
				if i%tt.perDir == 0 {
					must(b, os.MkdirAll(path, 0o700))
				}
				must(b, os.WriteFile(filepath.Join(path, fmt.Sprintf("file-%d", i)), []byte("data"), 0o600))
			}
			compare(b, dir, files)
		})
	}
}

func compare(b *testing.B, dir string, files int) {
	b.Helper()
	volume := open(b, dir)
	du := func() { must(b, exec.Command("du", "-s", "--apparent-size", dir).Run()) }
	du()
	var ours, theirs time.Duration
	for b.Loop() {
		start := time.Now()
		got, err := usageOf(b.Context(), volume)
		must(b, err)
		if got.Files != int64(files) {
			b.Fatalf("measured %d files, want %d", got.Files, files)
		}
		ours += time.Since(start)
		start = time.Now()
		du()
		theirs += time.Since(start)
	}
	b.ReportMetric(float64(ours)/float64(theirs), "x-du")
	b.ReportMetric(float64(ours.Nanoseconds())/float64(b.N)/float64(files), "ns/file")
}
