package kopia_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// BenchmarkKopia measures a backup, one of the unchanged volume and a restore, each against kopia's own program in the
// same version on the same data: x-kopia is our time divided by its time. MB-RSS is the worker's memory at its peak,
// kopia-MB-RSS the program's, MB-cache what the runs have left in the cache. Run it without other load:
//
//	go test -run '^$' -bench Kopia -benchtime 1x ./pkg/uploader/kopia
func BenchmarkKopia(b *testing.B) {
	for _, data := range []struct {
		name        string
		files, size int
	}{{"1GiB", 32, 32 << 20}, {"200k-files", 200_000, 512}} {
		b.Run(data.name, func(b *testing.B) {
			volume := b.TempDir()
			fill(b, volume, data.files, data.size)
			for range b.N {
				benchmark(b, volume)
			}
		})
	}
}

func benchmark(b *testing.B, volume string) {
	b.Helper()
	var memory peak
	cache := b.TempDir()
	u, err := kopia.New(kopia.Options{CacheDir: cache, TempDir: b.TempDir(), Logger: slog.New(&memory)})
	if err != nil {
		b.Fatal(err)
	}
	theirs, ours := newRepository(b, u), newRepository(b, u)
	p := connect(b, theirs)
	memory.Store(0)
	var id string
	store := func() {
		id = backup(b, u, uploader.BackupRequest{Repository: ours, Volume: open(b, volume), Parallel: 2}, nil).SnapshotID
	}
	for _, step := range []struct {
		name string
		ours func()
		args []string
	}{
		{"backup", store, []string{"snapshot", "create", volume, "--parallel", "2"}},
		{"unchanged", store, []string{"snapshot", "create", volume, "--parallel", "2"}},
		{"restore", func() {
			restore(b, u, uploader.RestoreRequest{Repository: ours, Volume: open(b, b.TempDir()), SnapshotID: id, Parallel: 2})
		}, []string{"snapshot", "restore", volume, b.TempDir(), "--parallel", "2"}},
	} {
		memory.Store(0)
		start := time.Now()
		step.ours()
		took := time.Since(start)
		start = time.Now()
		rss := p.measure(b, step.args...)
		b.ReportMetric(float64(took)/float64(time.Since(start)), "x-kopia-"+step.name)
		b.ReportMetric(took.Seconds(), "s-"+step.name)
		b.ReportMetric(float64(memory.Load())/1e6, "MB-RSS-"+step.name)
		b.ReportMetric(float64(rss)/1e6, "kopia-MB-RSS-"+step.name)
	}
	b.ReportMetric(float64(size(b, cache))/1e6, "MB-cache")
}

// BenchmarkSmallVolumes backs up volumes of 10 MiB to an S3 server on this machine, one after the other.
func BenchmarkSmallVolumes(b *testing.B) {
	repository := bucketAddress(b, s3.Start(b))
	u, err := kopia.New(kopia.Options{CacheDir: b.TempDir(), TempDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	if err := u.Initialize(b.Context(), repository); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		volume := randomVolume(b, 10, mib)
		b.StartTimer()
		backup(b, u, uploader.BackupRequest{Repository: repository, Volume: volume}, nil)
	}
}

func newRepository(b *testing.B, u *kopia.Uploader) uploader.Repository {
	b.Helper()
	repository := newAddress(b)
	if err := u.Initialize(b.Context(), repository); err != nil {
		b.Fatal(err)
	}
	return repository
}

// measure runs the program and returns its memory at its peak in bytes.
func (p program) measure(b *testing.B, args ...string) int64 {
	b.Helper()
	cmd := p.command(b.Context(), args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		b.Fatalf("kopia %v: %v\n%s", args, err, &output)
	}
	return cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
}

// fill makes files of random data, 1,000 in a directory.
func fill(b *testing.B, dir string, files, size int) {
	b.Helper()
	content := make([]byte, size)
	for i := range files {
		_, _ = rand.Read(content)
		parent := filepath.Join(dir, strconv.Itoa(i/1000))
		if i%1000 == 0 {
			if err := os.Mkdir(parent, 0o700); err != nil {
				b.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(parent, strconv.Itoa(i)), content, 0o600); err != nil {
			b.Fatal(err)
		}
	}
}

func size(b *testing.B, dir string) (bytes int64) {
	b.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return bytes
}

// peak is a log that keeps how much memory workers took, as package worker says in its log.
type peak struct{ atomic.Int64 }

func (*peak) Enabled(context.Context, slog.Level) bool { return true }
func (p *peak) WithAttrs([]slog.Attr) slog.Handler     { return p }
func (p *peak) WithGroup(string) slog.Handler          { return p }

func (p *peak) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "maxRSSBytes" {
			p.Store(max(p.Load(), a.Value.Int64()))
		}
		return true
	})
	return nil
}
