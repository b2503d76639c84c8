package worker_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// BenchmarkGuard restores many small files with restic. x-unguarded is the time divided by that of a worker which may
// write to the same directories but has no guard. cpu-µs/file is what the guard adds in CPU time, the agent's included, which
// other load on the machine changes less. Run it without other load:
//
//	go test -run '^$' -bench Guard -benchtime 3x ./pkg/worker
func BenchmarkGuard(b *testing.B) {
	const files = 50_000
	source, repository := b.TempDir(), filepath.Join(b.TempDir(), "repository")
	for i := range files {
		dir := filepath.Join(source, strconv.Itoa(i/1000))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), fmt.Appendf(nil, "%2048d", i), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	program := parts.Restic(b, parts.DefaultRestic)
	env := []string{"RESTIC_REPOSITORY=" + repository, "RESTIC_PASSWORD=static-passw0rd"}
	for _, args := range [][]string{{"init", "--no-cache"}, {"backup", ".", "--no-cache"}} {
		cmd := exec.CommandContext(b.Context(), program, args...)
		cmd.Dir, cmd.Env = source, env
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v\n%s", err, out)
		}
	}
	restore := func(access func(dir string) worker.Access) (wall, cpu time.Duration) {
		dir, err := os.Open(b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		defer os.RemoveAll(dir.Name())
		defer dir.Close()
		var said bytes.Buffer
		start, before := time.Now(), cpuTime(b)
		if err := worker.Run(b.Context(), worker.Command{
			Path: program, Args: []string{"restore", "latest", "--target", ".", "--no-cache"}, Env: env, Dir: dir,
			Access: access(dir.Name()), Stderr: func(line []byte) { said.Write(line) }, Logger: slog.New(slog.DiscardHandler),
		}); err != nil {
			b.Fatalf("%v\n%s", err, &said)
		}
		return time.Since(start), cpuTime(b) - before
	}
	var guarded, unguarded, added time.Duration
	for range b.N {
		without, cpuWithout := restore(func(dir string) worker.Access { return worker.Access{ReadWrite: []string{repository, dir}} })
		with, cpuWith := restore(func(string) worker.Access {
			return worker.Access{Volume: worker.Write, ReadWrite: []string{repository}}
		})
		unguarded, guarded, added = unguarded+without, guarded+with, added+cpuWith-cpuWithout
	}
	b.ReportMetric(float64(guarded)/float64(unguarded), "x-unguarded")
	b.ReportMetric(float64(guarded-unguarded)/float64(b.N)/files/1e3, "µs/file")
	b.ReportMetric(float64(added)/float64(b.N)/files/1e3, "cpu-µs/file")
}

// cpuTime is what this process and the workers that have ended took.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var sum int64
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var usage unix.Rusage
		if err := unix.Getrusage(who, &usage); err != nil {
			b.Fatal(err)
		}
		sum += usage.Utime.Nano() + usage.Stime.Nano()
	}
	return time.Duration(sum)
}
