package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

const (
	namespace = "velero"
	account   = "system:serviceaccount:velero:plimsoll-node-agent"
)

// cluster is a control plane with a Velero server's objects.
type cluster struct {
	plane  *controlplane.ControlPlane
	scheme *runtime.Scheme
	api    client.Client // of an administrator
	backup *velerov1.Backup
	dir    string
}

func startCluster(ctx context.Context) (_ *cluster, err error) {
	crds, err := controlplane.VeleroCRDs(controlplane.LatestVelero)
	if err != nil {
		return nil, err
	}
	c := &cluster{scheme: runtime.NewScheme()}
	if err := errors.Join(clientgoscheme.AddToScheme(c.scheme), velerov1.AddToScheme(c.scheme)); err != nil {
		return nil, err
	}
	if c.dir, err = os.MkdirTemp("", "plimsoll-scale-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop())
		}
	}()
	if c.plane, err = controlplane.Start(controlplane.Options{CRDs: crds}); err != nil { //nolint:contextcheck // it runs until stop
		return nil, err
	}
	cfg := c.plane.Config()
	cfg.QPS = -1
	if c.api, err = client.New(cfg, client.Options{Scheme: c.scheme}); err != nil {
		return nil, err
	}
	return c, c.install(ctx)
}

// install creates what agents and volumes need. Agents may do everything, but as a service account, so that the API server treats their
// requests with priority and fairness as it does in a cluster.
func (c *cluster) install(ctx context.Context) error {
	start := metav1.Now()
	c.backup = &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nightly"},
		Status:     velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress, StartTimestamp: &start},
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "velero-repo-credentials"},
			StringData: map[string]string{"repository-password": "not secret"},
		},
		&velerov1.BackupStorageLocation{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: velero.Location},
			Spec: velerov1.BackupStorageLocationSpec{
				Provider: "velero.io/fs", Config: map[string]string{"fspath": c.dir},
				StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
			},
		},
		&rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "agents"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: account}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		},
		c.backup,
	} {
		if err := c.api.Create(ctx, o); err != nil {
			return fmt.Errorf("create %T: %w", o, err)
		}
	}
	return nil
}

func (c *cluster) stop() (err error) {
	if c.plane != nil {
		err = c.plane.Stop()
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// usage is what the control plane has used so far.
type usage struct {
	apiCPU, etcdCPU, ownCPU time.Duration
	machineCPU              time.Duration // of all programs of the machine
	apiMemory, etcdMemory   int64
	etcdSize                float64
}

// usage reads what the programs of the control plane, and this one, have used.
func (c *cluster) usage(ctx context.Context) (u usage, err error) {
	own := os.Getpid()
	if u.ownCPU, _, err = process(own); err != nil {
		return u, err
	}
	if u.machineCPU, err = machineCPU(); err != nil {
		return u, err
	}
	children, err := children(own)
	if err != nil {
		return u, err
	}
	for _, pid := range children {
		cpu, memory, err := process(pid)
		if err != nil {
			return u, err
		}
		switch name(pid) {
		case "kube-apiserver":
			u.apiCPU, u.apiMemory = cpu, memory
		case "etcd":
			u.etcdCPU, u.etcdMemory = cpu, memory
			if u.etcdSize, err = etcdSize(ctx, pid); err != nil {
				return u, err
			}
		}
	}
	return u, nil
}

// etcdSize returns how many bytes of etcd's database are in use.
func etcdSize(ctx context.Context, pid int) (float64, error) {
	arguments, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return 0, err
	}
	_, address, found := strings.Cut(string(arguments), "--listen-client-urls=")
	if !found {
		return 0, errors.New("etcd was started without an address")
	}
	address, _, _ = strings.Cut(address, "\x00")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("read etcd's metrics: %w", err)
	}
	defer answer.Body.Close()
	return find(answer.Body, "etcd_mvcc_db_total_size_in_use_in_bytes")
}

// children returns the processes that a process has started.
func children(pid int) ([]int, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, task := range tasks {
		content, err := os.ReadFile(task)
		if err != nil {
			continue // the thread has ended
		}
		for field := range strings.FieldsSeq(string(content)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
	}
	slices.Sort(pids)
	return pids, nil
}

func name(pid int) string {
	content, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // empty for a process that has ended
	return strings.TrimSpace(string(content))
}

// clockTicks is what Linux counts the CPU time of processes in, on all architectures that we build for.
const clockTicks = 100

// machineCPU returns the CPU time of all programs of the machine, with what its host has given to other machines.
func machineCPU() (sum time.Duration, err error) {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	fields := strings.Fields(first)
	const user, nice, system, irq, softirq, steal = 1, 2, 3, 6, 7, 8 // proc_stat(5); idle and iowait are between them
	if len(fields) <= steal {
		return 0, errors.New("unknown format of /proc/stat")
	}
	for _, field := range []int{user, nice, system, irq, softirq, steal} {
		ticks, err := strconv.ParseInt(fields[field], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read /proc/stat: %w", err)
		}
		sum += time.Duration(ticks) * (time.Second / clockTicks)
	}
	return sum, nil
}

// process returns the CPU time and the resident memory of a process.
func process(pid int) (cpu time.Duration, memory int64, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, after, _ := strings.Cut(string(content), ") ") // the name may have spaces
	fields := strings.Fields(after)
	const utime, stime, rss = 11, 12, 21 // proc(5), counted from the state on
	if len(fields) <= rss {
		return 0, 0, fmt.Errorf("process %d: unknown format of stat", pid)
	}
	var numbers [3]int64
	for i, field := range []int{utime, stime, rss} {
		if numbers[i], err = strconv.ParseInt(fields[field], 10, 64); err != nil {
			return 0, 0, fmt.Errorf("process %d: %w", pid, err)
		}
	}
	return time.Duration(numbers[0]+numbers[1]) * (time.Second / clockTicks), numbers[2] * int64(os.Getpagesize()), nil
}
