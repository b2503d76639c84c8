package restic

import (
	"bytes"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// BenchmarkRestic measures a backup, one of the unchanged volume and a restore, each against the bare program on the same
// data: x-restic is our wall time divided by its, x-cpu the same of the CPU time, ours included. Run it without other load:
//
//	go test -run '^$' -bench Restic -benchtime 3x ./pkg/uploader/restic
func BenchmarkRestic(b *testing.B) {
	for _, data := range []struct {
		name        string
		files, size int
	}{{"1GiB", 32, 32 << 20}, {"50k-files", 50_000, 2 << 10}} {
		b.Run(data.name, func(b *testing.B) {
			volume := b.TempDir()
			fill(b, volume, data.files, data.size)
			sum := map[string]float64{}
			for range b.N {
				compare(b, volume, sum)
			}
			for unit, ratios := range sum {
				b.ReportMetric(ratios/float64(b.N), unit)
			}
		})
	}
}

// compare adds the ratios of one round to sum, by unit.
func compare(b *testing.B, volume string, sum map[string]float64) {
	b.Helper()
	program := parts.Restic(b, parts.DefaultRestic)
	u, err := New(b.Context(), program, Options{CacheDir: b.TempDir(), TempDir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	ours := uploader.Repository{URL: filepath.Join(b.TempDir(), "repository"), Password: "static-passw0rd"}
	if err := u.Initialize(b.Context(), ours); err != nil {
		b.Fatal(err)
	}
	bare := bareRestic{program: program, env: []string{
		"RESTIC_REPOSITORY=" + filepath.Join(b.TempDir(), "repository"), "RESTIC_PASSWORD=static-passw0rd", "RESTIC_CACHE_DIR=" + b.TempDir(),
	}}
	bare.run(b, volume, "init")
	var id string
	store := func() {
		result, err := u.Backup(b.Context(), uploader.BackupRequest{Repository: ours, Volume: openVolume(b, volume)}, progress.Discard)
		if err != nil {
			b.Fatal(err)
		}
		id = result.SnapshotID
	}
	fetch := func() {
		if _, err := u.Restore(b.Context(), uploader.RestoreRequest{Repository: ours, Volume: openVolume(b, b.TempDir()), SnapshotID: id}, progress.Discard); err != nil {
			b.Fatal(err)
		}
	}
	for _, step := range []struct {
		name string
		ours func()
		args []string
	}{
		{"backup", store, []string{"backup", ".", "--json", "--host", hostName}},
		{"unchanged", store, []string{"backup", ".", "--json", "--host", hostName}},
		{"restore", fetch, []string{"restore", "latest", "--json", "--target", b.TempDir()}},
	} {
		wall, cpu := measured(step.ours)
		bareWall, bareCPU := measured(func() { bare.run(b, volume, step.args...) })
		sum["x-restic-"+step.name] += float64(wall) / float64(bareWall)
		sum["x-cpu-"+step.name] += float64(cpu) / float64(bareCPU)
	}
}

// measured returns how long do took, and the CPU time of this process and its children.
func measured(do func()) (wall, cpu time.Duration) {
	start, before := time.Now(), cpuTime()
	do()
	return time.Since(start), cpuTime() - before
}

func cpuTime() time.Duration {
	var sum int64
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var usage syscall.Rusage
		if err := syscall.Getrusage(who, &usage); err != nil {
			panic(err)
		}
		sum += usage.Utime.Nano() + usage.Stime.Nano()
	}
	return time.Duration(sum)
}

// bareRestic is the program without us.
type bareRestic struct {
	program string
	env     []string
}

func (r bareRestic) run(b *testing.B, dir string, args ...string) {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), r.program, args...)
	var output bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, r.env, &output, &output
	if err := cmd.Run(); err != nil {
		b.Fatalf("restic %v: %v\n%s", args, err, &output)
	}
}

func openVolume(b *testing.B, dir string) *os.File {
	b.Helper()
	f, err := os.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = f.Close() })
	return f
}

// fill makes files of random data, 1,000 in a directory.
func fill(b *testing.B, dir string, files, size int) {
	b.Helper()
	content := make([]byte, size)
	for i := range files {
		_, _ = rand.Read(content)
		parent := filepath.Join(dir, strconv.Itoa(i/1000))
		if err := os.MkdirAll(parent, 0o700); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(parent, strconv.Itoa(i)), content, 0o600); err != nil {
			b.Fatal(err)
		}
	}
}
