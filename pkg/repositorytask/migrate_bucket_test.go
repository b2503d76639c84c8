package repositorytask

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
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
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// newBucketSite returns a site whose location is a bucket of an S3 server.
func newBucketSite(t *testing.T) *site {
	t.Helper()
	server := s3.Start(t)
	bucket := server.Bucket(t)
	s := newSiteAt(t, server.Dir(bucket))
	s.Create(s.BucketLocation("default", server, bucket))
	s.bucket = "s3:https://" + server.Endpoint + "/" + bucket
	return s
}

// inBucket is repository for a bucket.
func (s *site) inBucket(kind, namespace string) uploader.Repository {
	s.t.Helper()
	pvb := &velerov1.PodVolumeBackup{Spec: velerov1.PodVolumeBackupSpec{
		Pod: corev1.ObjectReference{Namespace: namespace}, BackupStorageLocation: "default", UploaderType: kind,
	}}
	if kind == "restic" {
		pvb.Spec.RepoIdentifier = s.bucket + "/restic/" + namespace
	}
	repository, err := NewRepositories(s.Client, s.Namespace).Of(s.t.Context(), pvb)
	if err != nil {
		s.t.Fatal(err)
	}
	return repository
}

// bareRestic runs restic in a version on the repository of namespace shop, and returns what it prints.
func (s *site) bareRestic(version string, args ...string) string {
	s.t.Helper()
	repository := s.repository("restic", "shop")
	env, _, err := repository.Environment(s.t.TempDir())
	if err != nil {
		s.t.Fatal(err)
	}
	c := exec.CommandContext(s.t.Context(), parts.Restic(s.t, version), append([]string{"--no-cache", "-r", repository.URL}, args...)...)
	c.Env = []string{"RESTIC_PASSWORD=" + repository.Password.Reveal(), "HOME=" + s.t.TempDir(), "TMPDIR=" + s.t.TempDir()}
	for name, value := range env {
		c.Env = append(c.Env, name+"="+value)
	}
	out, err := c.CombinedOutput()
	if err != nil {
		s.t.Fatalf("restic %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// tasksOf makes the test binary a process that does the tasks of a namespace.
const tasksOf = "REPOSITORYTASK_TEST_NAMESPACE"

// slowly is how many bytes of a restic repository such a process reads in a second.
const slowly = 2 << 20

func runTasks(namespace string) int {
	if err := serveTasks(namespace); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func serveTasks(namespace string) error {
	ctx, log := context.Background(), slog.New(slog.NewTextHandler(os.Stderr, nil)) //nolint:forbidigo // the main of a process
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), velerov1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"}, Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}},
	})
	if err != nil {
		return err
	}
	to, err := kopia.New(kopia.Options{Worker: os.Getenv("KOPIA_WORKER"), Logger: log})
	if err != nil {
		return err
	}
	from, err := restic.New(ctx, os.Getenv("RESTIC"), restic.Options{DownloadLimit: slowly, StartBytes: 1, Logger: log})
	if err != nil {
		return err
	}
	if err := SetUp(mgr, Config{Namespace: namespace, Exporter: from, Importer: to, ReadAllBelow: 1, RetryDelay: time.Millisecond, Logger: log}); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// tasksProcess is such a process.
type tasksProcess struct {
	*site

	cmd *exec.Cmd
}

func (s *site) startProcess() tasksProcess {
	s.t.Helper()
	p := tasksProcess{s, exec.CommandContext(s.t.Context(), os.Args[0])}
	p.cmd.Env = []string{tasksOf + "=" + s.Namespace, "KUBECONFIG=" + s.Plane.Kubeconfig(), "RESTIC=" + parts.Restic(s.t, parts.DefaultRestic), "KOPIA_WORKER=" + parts.KopiaWorker(s.t), "TMPDIR=" + s.t.TempDir()}
	p.cmd.Stderr = s.t.Output()
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _, _ = p.cmd.Process.Kill(), p.cmd.Wait() })
	return p
}

// worker returns the process id of a worker by its arguments; 0: there is none.
func (p tasksProcess) worker(is func(args []string) bool) int {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid)) // the pattern is valid
	for _, list := range lists {
		ids, _ := os.ReadFile(list) // a thread that has ended has no children
		for id := range strings.FieldsSeq(string(ids)) {
			if is(strings.Split(commandLine(id), "\x00")) {
				pid, _ := strconv.Atoi(id) // the kernel writes numbers
				return pid
			}
		}
	}
	return 0
}

// commandLine is empty for a process that has ended.
func commandLine(pid string) string {
	line, _ := os.ReadFile("/proc/" + pid + "/cmdline") // see above
	return string(line)
}

var written = regexp.MustCompile(`(?m)^wchar: (\d+)$`)

// midway waits until another restic than the process before has written a MiB of a snapshot, and returns it and the kopia worker.
func (p tasksProcess) midway(snapshot string, before int) (dump, importer int) {
	p.t.Helper()
	p.Eventually("the middle of the snapshot", func() bool {
		dump = p.worker(func(args []string) bool { return slices.Contains(args, "dump") && slices.Contains(args, snapshot) })
		importer = p.worker(func(args []string) bool { return slices.Equal(args[1:], []string{"worker", "kopia", ""}) })
		counts, _ := os.ReadFile(fmt.Sprintf("/proc/%d/io", dump)) // it may have ended
		count := written.FindSubmatch(counts)
		if dump == 0 || dump == before || importer == 0 || count == nil {
			return false
		}
		n, err := strconv.Atoi(string(count[1]))
		return err == nil && n >= 1<<20
	})
	return dump, importer
}

func (p tasksProcess) kill(pid int) {
	p.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
}

// TestMigrateKilled migrates out of repositories as the versions of restic made them that Velero has had, in a bucket. In the middle of
// the second of three snapshots the kopia worker is killed, then restic, then the whole process. The next process completes it, and in
// the restic repository and the Backups not a byte has changed at any of these moments.
func TestMigrateKilled(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	for name, made := range map[string]struct{ version, format string }{
		"0.14, format 1": {"0.14.0", "1"}, "0.14, format 2": {"0.14.0", "2"}, "0.16": {"0.16.4", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newBucketSite(t)
			s.bareRestic(made.version, "init", "--repository-version", made.format)
			s.restic = s.newRestic(made.version)
			nights := s.nights(12 << 20)
			s.restic = s.newRestic(parts.DefaultRestic)
			before := untouched(t, s)
			same := func(when string) {
				t.Helper()
				if !maps.Equal(before, untouched(t, s)) {
					t.Errorf("%s the restic repository or a Backup has changed", when)
				}
			}
			p := s.startProcess()
			task := s.migration("task")
			s.Create(task)
			second := nights[1].pvb.Status.SnapshotID
			dump, importer := p.midway(second, 0)
			p.kill(importer)
			same("after the kopia worker was killed")
			dump, _ = p.midway(second, dump)
			p.kill(dump)
			same("after restic was killed")
			dump, importer = p.midway(second, dump)
			p.kill(p.cmd.Process.Pid)
			_ = p.cmd.Wait()
			s.Eventually("the end of its workers", func() bool { return commandLine(strconv.Itoa(dump))+commandLine(strconv.Itoa(importer)) == "" })
			same("after the process was killed")
			s.wantSnapshots(1)

			s.start(s.migrating())
			status := testenv.EventuallyGet(s.Env, task, "the end of the task", func(t *v1alpha1.RepositoryTask, err error) bool { return err == nil && t.Status.Phase.Terminal() }).Status
			if status.Phase != v1alpha1.PhaseCompleted || status.Attempts != 2 || len(status.Volumes) != 3 {
				t.Fatalf("%+v", status)
			}
			same("at the end")
			s.wantSnapshots(3)
			for i, n := range nights {
				if v := status.Volumes[i]; v.Result != v1alpha1.VolumeMigrated || v.Mismatched != 0 {
					t.Errorf("%+v", v)
				}
				s.checkCopy(n)
			}
			if config := s.bareRestic(parts.DefaultRestic, "cat", "config", "--no-lock"); !strings.Contains(config, `"version": `+made.format+",") {
				t.Errorf("the repository is not of format %s: %s", made.format, config)
			}
			s.bareRestic(parts.DefaultRestic, "check", "--read-data", "--no-lock")
		})
	}
}
