package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/resticrepo"
)

var manyEntries = flag.Int("entries", 0, "TestManyEntries: measure with this many entries; 0: not at all")

// workerMemory is a log that remembers the most memory that a worker has taken.
type workerMemory struct {
	mu   sync.Mutex
	most map[string]int64 // by program, bytes
}

func (*workerMemory) Enabled(context.Context, slog.Level) bool { return true }
func (m *workerMemory) WithAttrs([]slog.Attr) slog.Handler     { return m }
func (m *workerMemory) WithGroup(string) slog.Handler          { return m }

func (m *workerMemory) Handle(_ context.Context, r slog.Record) error {
	var program string
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "program":
			program = filepath.Base(a.Value.String())
		case "maxRSSBytes":
			m.mu.Lock()
			defer m.mu.Unlock()
			m.most[program] = max(m.most[program], a.Value.Int64())
		}
		return true
	})
	return nil
}

// counted counts what a command prints, and keeps the end.
type counted struct {
	lines int
	tail  []byte
}

func (c *counted) Write(p []byte) (int, error) {
	c.lines += bytes.Count(p, []byte("\n"))
	c.tail = append(c.tail, p...)
	c.tail = c.tail[max(len(c.tail)-200, 0):]
	return len(p), nil
}

var peak = regexp.MustCompile(`VmHWM:\s+(\d+) kB`)

// TestManyEntries measures repository ls and diff (docs/performance.md). Command and server are this one process.
func TestManyEntries(t *testing.T) {
	if *manyEntries == 0 {
		return
	}
	c := newCluster(t)
	memory := &workerMemory{most: map[string]int64{}}
	kopiaData, kopiaErr := kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), TempDir: t.TempDir(), Logger: slog.New(memory)})
	resticData, resticErr := restic.New(t.Context(), parts.Restic(t, parts.DefaultRestic), restic.Options{TempDir: t.TempDir(), Logger: slog.New(memory)})
	if kopiaErr != nil || resticErr != nil {
		t.Fatal(kopiaErr, resticErr)
	}
	dir := t.TempDir()
	write := func(dir string, from, to int, content string) {
		for i := from; i < to; i++ {
			name := filepath.Join(dir, fmt.Sprintf("directory-%04d", i/1000), fmt.Sprintf("file-%07d", i))
			if i%1000 == 0 || i == from {
				_ = os.MkdirAll(filepath.Dir(name), 0o755) // or the file cannot be written
			}
			text := "" // most are empty: it is not the disk's blocks that are measured
			if i%10 == 0 {
				text = content + name
			}
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	n := *manyEntries
	write(dir, 0, n, "")
	before, after := c.endedBackup("earlier"), c.endedBackup("nightly")
	store := func(b *velerov1.Backup) {
		for kind, data := range map[string]uploader.Uploader{"kopia": kopiaData, "restic": resticData} {
			repository := uploader.Repository{URL: filepath.Join(c.store, kind, "shop"), Password: resticrepo.Password}
			if err := data.Initialize(t.Context(), repository); err != nil { // with the memory that a key of an agent's repository takes
				t.Fatal(err)
			}
			began := time.Now()
			c.recordBackup(b, kind, kind, c.storeDirectory(data, repository, dir), began, velerov1.PodVolumeBackupPhaseCompleted)
			t.Logf("%s: backup %s took %.0f s", kind, b.Name, time.Since(began).Seconds())
		}
	}
	store(before)
	write(dir, 0, n/100, "changed")
	write(dir, n, n+n/100, "")
	store(after)
	c.serveFiles(map[string]uploader.Browser{"kopia": kopiaData, "restic": resticData})
	bare := bareList(t, filepath.Join(c.store, "restic", "shop"), "--long")
	bareList(t, filepath.Join(c.store, "restic", "shop"), "--json")
	for _, kind := range []string{"kopia", "restic"} {
		for name, args := range map[string][]string{
			"ls": {"ls", "--backup", "nightly", "-R"}, "diff": {"diff", "--backup", "earlier", "--to-backup", "nightly"},
		} {
			_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o600) // or the peak is that of the whole test
			memory.most = map[string]int64{}
			var out counted
			var errOut bytes.Buffer
			began := time.Now()
			code := run(t.Context(), strings.NewReader(""), &out, &errOut, append([]string{"--kubeconfig", c.kubeconfig, "--namespace", c.Namespace, "--as", "browser", "repository", "--volume", "shop/" + kind}, args...))
			took := time.Since(began)
			status, _ := os.ReadFile("/proc/self/status") // without it there is no match
			hwm := peak.FindSubmatch(status)
			t.Logf("%s %s: code %d, %.1f s, %.2f times bare restic ls --long, %d lines, peak of command and server %s kB, of one worker %v bytes; %s %s", kind, name, code, took.Seconds(), took.Seconds()/bare.Seconds(), out.lines, hwm[1], memory.most, out.tail[bytes.LastIndexByte(out.tail[:len(out.tail)-1], '\n')+1:], errOut.String())
		}
	}
}

// bareList measures restic ls alone, of the newest snapshot of a repository.
func bareList(t *testing.T, repository, format string) time.Duration {
	t.Helper()
	c := exec.CommandContext(t.Context(), parts.Restic(t, parts.DefaultRestic), "ls", format, "latest", "--no-cache", "--no-lock", "-r", repository)
	c.Env = []string{"RESTIC_PASSWORD=" + resticrepo.Password, "HOME=" + t.TempDir()}
	var out counted
	c.Stdout = &out
	began := time.Now()
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	usage, ok := c.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		t.Fatal("the system does not say how much memory restic took")
	}
	t.Logf("bare restic ls %s: %.1f s, %d lines, peak %d kB", format, took.Seconds(), out.lines, usage.Maxrss)
	return took
}
