package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/terminal"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

var recordsWatch = flag.Bool("record", false, "make docs/images/watch.svg anew from the run of TestWatch, which takes longer then")

// watched is a cluster that the plugin is called for as a process of its own.
type watched struct {
	*cluster
	config string // a kubeconfig
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	c := newCluster(t)
	return &watched{c, c.kubeconfig}
}

// serveProgress starts a real agent, and lets the API server carry what it tells: nobody could ask it without a kubelet, so
// a proxy stands between, and answers for its pod with the agent's real endpoint. The agent tells its objects
// nothing between their start and end: what moves on a screen comes from there.
func (w *watched) serveProgress(uploadLimit int64) {
	w.t.Helper()
	w.tune = func(c *nodeagent.Config) { c.ProgressInterval, c.StallAfter, c.Concurrency = time.Hour, time.Hour, 2 }
	w.startAgent(uploadLimit)
	agent := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.Namespace, Name: "node-agent-5d8f7", Labels: map[string]string{"name": "node-agent"}},
		Spec:       corev1.PodSpec{NodeName: w.node.Name, Containers: []corev1.Container{{Name: "node-agent", Image: "agent"}}},
	}
	w.Create(agent)
	w.Change(agent, func() { agent.Status.Phase = corev1.PodRunning })
	proxy := w.NewProxy()
	proxy.ServePod(agent.Name+":8085", w.agent)
	w.config = testenv.Kubeconfig(w.t, proxy.Config())
}

// command is the plugin on a terminal of the usual kind.
func (w *watched) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(w.t.Context(), os.Args[0], append([]string{"--namespace", w.Namespace}, args...)...)
	cmd.Env = []string{
		asProgram + "=1", "GORACE=" + os.Getenv("GORACE"),
		"KUBECONFIG=" + w.config, "TERM=xterm-256color", "LANG=C.UTF-8", "HOME=" + w.t.TempDir(),
	}
	return cmd
}

// outputOf runs the plugin without a terminal.
func outputOf(cmd *exec.Cmd) (out, errOut string, code int) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		return stdout.String(), stderr.String(), exit.ExitCode()
	} else if err != nil {
		return stdout.String(), err.Error(), -1
	}
	return stdout.String(), stderr.String(), 0
}

// running makes a Backup that runs.
func (w *watched) running(name string) *velerov1.Backup {
	w.t.Helper()
	backup := &velerov1.Backup{
		ObjectMeta: w.Meta(name),
		Status: velerov1.BackupStatus{
			Phase: velerov1.BackupPhaseInProgress, StartTimestamp: new(metav1.Now()), Progress: &velerov1.BackupProgress{TotalItems: 48, ItemsBackedUp: 12},
		},
	}
	w.Create(backup)
	return backup
}

// volume asks for the backup of the only volume of a pod.
func (w *watched) volume(backup *velerov1.Backup, pod *corev1.Pod) *velerov1.PodVolumeBackup {
	w.t.Helper()
	pvb := velero.PodVolumeBackup(backup, pod, pod.Spec.Volumes[0].Name, "restic")
	w.Create(pvb)
	return pvb
}

// data makes a pod with a volume of random bytes.
func (w *watched) data(name, volume string, bytes int64) *corev1.Pod {
	w.t.Helper()
	pod := w.node.Pod(name, volume)
	file, err := os.Create(filepath.Join(w.node.Volume(pod, volume), "data"))
	if err != nil {
		w.t.Fatal(err)
	}
	defer file.Close()
	var seed [32]byte
	copy(seed[:], name)
	if _, err := io.CopyN(file, rand.NewChaCha8(seed), bytes); err != nil {
		w.t.Fatal(err)
	}
	return pod
}

// serve plays the Velero server to the end of a backup: when all its volumes have ended, it has.
func (w *watched) serve(backup *velerov1.Backup, volumes ...*velerov1.PodVolumeBackup) {
	w.t.Helper()
	end := velerov1.BackupPhaseCompleted
	for _, pvb := range volumes {
		testenv.EventuallyGet(w.Env, pvb, "the end of a volume", func(p *velerov1.PodVolumeBackup, _ error) bool { return p.Status.CompletionTimestamp != nil })
		if pvb.Status.Phase != velerov1.PodVolumeBackupPhaseCompleted {
			end = velerov1.BackupPhasePartiallyFailed
		}
	}
	w.Change(backup, func() {
		backup.Status.Phase, backup.Status.CompletionTimestamp, backup.Status.Progress.ItemsBackedUp = end, new(metav1.Now()), 48
	})
}

// percents are those of a volume, one after the other.
func percents(t *testing.T, frames [][][]terminal.Cell, volume string) []int {
	t.Helper()
	line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(volume) + ` .*?(\d+)%`)
	var all []int
	for _, frame := range frames {
		if found := line.FindStringSubmatch(terminal.Text(frame)); found != nil {
			percent, err := strconv.Atoi(found[1])
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, percent)
		}
	}
	return all
}

// TestWatch watches a real agent that backs up real volumes with restic, on a real terminal, and beside that in a pipe.
func TestWatch(t *testing.T) {
	t.Parallel()
	const mebibyte = 1 << 20
	volumes := map[string]int64{"database-0/data": 160, "gallery/photos": 160} // restic reads some 50 MiB ahead
	limit := int64(8)
	if *recordsWatch {
		volumes = map[string]int64{"database-0/data": 300, "gallery/photos": 240, "mail-0/folders": 160, "wiki/uploads": 120, "search-0/index": 96}
		limit = 12
	}
	w := newWatched(t)
	w.serveProgress(limit * mebibyte)
	backup := w.running("nightly")
	var pvbs []*velerov1.PodVolumeBackup
	for _, name := range slices.Sorted(maps.Keys(volumes)) {
		pod, volume, _ := strings.Cut(name, "/")
		pvbs = append(pvbs, w.volume(backup, w.data(pod, volume, volumes[name]*mebibyte)))
	}
	x := onTerminal(t, w.command("watch", "backup", "nightly"))
	type result struct {
		out, errOut string
		code        int
	}
	piped := make(chan result)
	cmd := w.command("watch", "backup", "nightly")
	go func() {
		out, errOut, code := outputOf(cmd)
		piped <- result{out, errOut, code}
	}()
	w.serve(backup, pvbs...)

	code, frames := x.end()
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, name := range []string{"database-0/data", "gallery/photos"} {
		moved := percents(t, frames, name)
		between := slices.DeleteFunc(slices.Compact(slices.Clone(moved)), func(p int) bool { return p < 1 || p > 98 })
		if !slices.IsSorted(moved) || len(between) < 2 {
			t.Errorf("the bar of %s does not move, or goes back: %v", name, moved)
		}
	}
	last := x.screen.String()
	for _, want := range []string{"Backup nightly · Completed", "items 48 of 48 (100%)", fmt.Sprintf("%d of %d volumes done", len(volumes), len(volumes)), "100%"} {
		if !strings.Contains(last, want) {
			t.Errorf("what stays on the terminal has no %q:\n%s", want, last)
		}
	}
	lines := <-piped
	if lines.code != 0 || lines.errOut != "" {
		t.Errorf("in a pipe: exit code %d, %s", lines.code, lines.errOut)
	}
	for _, want := range []string{"  Backup nightly  InProgress\n", "/gallery/photos  Transferring ", "/gallery/photos  Completed      100%", "  Backup nightly  Completed\n"} {
		if !strings.Contains(lines.out, want) {
			t.Errorf("in a pipe: no %q in\n%s", want, lines.out)
		}
	}
	if strings.Contains(lines.out, "\x1b") {
		t.Errorf("in a pipe: sequences for terminals: %q", lines.out)
	}
	if *recordsWatch {
		record(t, frames, x.screen.Cells())
	}
}

// record makes the picture of a run: what was seen, at even distances, and what stays.
func record(t *testing.T, frames [][][]terminal.Cell, last [][]terminal.Cell) {
	t.Helper()
	const pictures = 11
	var seen, picked [][][]terminal.Cell
	for _, f := range frames {
		if text := terminal.Text(f); strings.Contains(text, "volumes done") && (len(seen) == 0 || text != terminal.Text(seen[len(seen)-1])) {
			seen = append(seen, f)
		}
	}
	for i := range pictures {
		picked = append(picked, seen[i*(len(seen)-1)/(pictures-1)])
	}
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "docs", "images", "watch.svg")
	if err := os.WriteFile(file, terminal.SVG("kubectl plimsoll watch backup nightly, recorded", append(picked, last)), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestWatchAFailure has a volume that the agent refuses, and the server's judgement of that.
func TestWatchAFailure(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.serveProgress(0)
	backup := w.running("nightly")
	pod := &corev1.Pod{
		ObjectMeta: w.Meta("logs"),
		Spec: corev1.PodSpec{
			NodeName: w.node.Name, Containers: []corev1.Container{{Name: "main", Image: "main"}},
			Volumes: []corev1.Volume{{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/log"}}}},
		},
	}
	w.Create(pod)
	x := onTerminal(t, w.command("watch", "backup", "nightly"))
	x.until("the backup", func(screen string) bool { return strings.Contains(screen, "Backup nightly · InProgress") })
	pvb := w.volume(backup, pod)
	x.until("the failure", func(screen string) bool {
		return strings.Contains(screen, "logs/host") && strings.Contains(screen, "Failed")
	})
	w.serve(backup, pvb)
	code, _ := x.end()
	if code != exitFailed {
		t.Errorf("exit code %d, want %d", code, exitFailed)
	}
	for _, want := range []string{"Backup nightly · PartiallyFailed", "1 failed", "has ended as PartiallyFailed", "logs/host: "} {
		if !strings.Contains(x.screen.String(), want) {
			t.Errorf("what stays on the terminal has no %q", want)
		}
	}
	out, errOut, code := outputOf(w.command("watch", "backup", "nightly", "--wait"))
	if code != exitFailed || strings.Count(out, "\n") != 1 || !strings.HasPrefix(out, "Backup nightly PartiallyFailed, in ") || !strings.Contains(errOut, "has ended as PartiallyFailed") {
		t.Errorf("--wait: code %d, %q, %q", code, out, errOut)
	}
}

// TestWatchLeaves has each way to go before the end.
func TestWatchLeaves(t *testing.T) {
	t.Parallel()
	w := newWatched(t)
	w.running("nightly")
	shown := func(screen string) bool { return strings.Contains(screen, "q quits") }
	for name, test := range map[string]struct {
		args  []string
		leave func(*session, *exec.Cmd)
		code  int
		last  string
	}{
		"q":      {[]string{"watch", "backup", "nightly"}, func(x *session, _ *exec.Cmd) { x.press("q") }, 0, "Backup nightly · InProgress"},
		"Ctrl-C": {[]string{"watch", "backup", "nightly"}, func(x *session, _ *exec.Cmd) { x.press("\x03") }, exitInterrupted, "interrupted"},
		"a signal": {[]string{"watch", "backup", "nightly"}, func(x *session, cmd *exec.Cmd) {
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				x.t.Error(err)
			}
		}, exitInterrupted, "interrupted"},
		"a timeout":      {[]string{"watch", "backup", "nightly", "--timeout", "3s"}, func(*session, *exec.Cmd) {}, exitTimeout, "--timeout 3s has passed"},
		"all volumes":    {[]string{"watch"}, func(x *session, _ *exec.Cmd) { x.press("q") }, 0, "All volumes"},
		"and a deletion": {[]string{"watch", "backup", "doomed"}, nil, 1, "Backup doomed in namespace " + w.Namespace + " was deleted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.leave == nil {
				doomed := w.running("doomed")
				test.leave = func(*session, *exec.Cmd) {
					if err := w.Client.Delete(t.Context(), doomed); err != nil {
						t.Error(err)
					}
				}
			}
			cmd := w.command(test.args...)
			x := onTerminal(t, cmd)
			if test.code != exitTimeout { // which may come before there is anything to see
				x.until("the backup", shown)
			}
			test.leave(x, cmd)
			if code, _ := x.end(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if x.screen.Alternate() || !strings.Contains(x.screen.String(), test.last) {
				t.Errorf("what stays on the terminal has no %q", test.last)
			}
		})
	}
}

// TestWatchOnOtherTerminals has those that can do less.
func TestWatchOnOtherTerminals(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	w := newWatched(t)
	pod := w.node.Pod("web", "data")
	for name, test := range map[string]struct {
		env     []string
		args    []string
		screen  bool
		colors  bool
		unicode bool
	}{
		"usual":          {screen: true, colors: true, unicode: true},
		"no-color":       {env: []string{"NO_COLOR=1"}, screen: true, unicode: true},
		"another-locale": {env: []string{"LC_ALL=C"}, screen: true, colors: true},
		"dumb":           {env: []string{"TERM=dumb"}},
		"none":           {env: []string{"TERM="}},
		"plain":          {args: []string{"--plain"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			backup := w.running(name)
			w.Create(velero.PodVolumeBackup(backup, pod, "data", "restic"))
			cmd := w.command(append([]string{"watch", "backup", backup.Name}, test.args...)...)
			cmd.Env = append(cmd.Env, test.env...)
			x := onTerminal(t, cmd)
			x.until("the volume", func(screen string) bool { return strings.Contains(screen, "web/data") })
			w.Change(backup, func() { backup.Status.Phase = velerov1.BackupPhaseFailed })
			if code, _ := x.end(); code != exitFailed {
				t.Errorf("exit code %d, want %d", code, exitFailed)
			}
			written := x.written.String()
			if got := strings.Contains(written, "\x1b[?1049h"); got != test.screen {
				t.Errorf("a screen: %t, want %t", got, test.screen)
			}
			if got := regexp.MustCompile(`\x1b\[[0-9;]*3[0-7]m`).MatchString(written); got != test.colors {
				t.Errorf("colors: %t, want %t: %q", got, test.colors, written)
			}
			if got := strings.Contains(x.screen.String(), "·"); got != test.unicode {
				t.Errorf("Unicode: %t, want %t", got, test.unicode)
			}
			if !test.screen && strings.Contains(written, "\x1b") {
				t.Errorf("sequences for terminals: %q", written)
			}
		})
	}
}

func TestWatchIsMisused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, args := range []string{"watch backup", "watch pod web", "watch backup a b", "watch --wait", "watch --timeout=-1s", "watch --nonsense"} {
		if _, errOut, code := c.run(strings.Fields(args)...); code != 2 || !strings.HasPrefix(errOut, "kubectl plimsoll: ") {
			t.Errorf("%s: exit code %d, want 2; %s", args, code, errOut)
		}
	}
	_, errOut, code := c.run("watch", "restore", "missing", "--wait")
	if want := "there is no Restore missing in namespace " + c.Namespace; code != 1 || !strings.Contains(errOut, want) {
		t.Errorf("exit code %d, %s; want 1, %s", code, errOut, want)
	}
}
