package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/nodeagent"
	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

const (
	volumes      = 4 // of each agent
	volumeSize   = 100 << 30
	uploaderType = "kopia"
)

// fleet are the agents of all nodes.
type fleet struct {
	*cluster
	options options
	agents  []*agent
	pods    []*corev1.Pod
	moving  atomic.Int64  // volumes that move now
	release chan struct{} // closed to let all volumes end
	writes  latencies
	cancel  context.CancelFunc
	running sync.WaitGroup
	failed  error // of the first manager that ended with an error
	once    sync.Once
}

// agent is a node's agent, with a connection of its own to the API server.
type agent struct {
	node     string
	received atomic.Int64 // bytes on its connections
}

// startFleet starts agents, and returns when all of them watch.
func (c *cluster) startFleet(ctx context.Context, number int, o options) (*fleet, error) {
	ctx, cancel := context.WithCancel(ctx)
	f := &fleet{cluster: c, options: o, release: make(chan struct{}), cancel: cancel}
	mapper := f.mapper()
	for i := range number {
		a := &agent{node: fmt.Sprintf("node-%05d", i)}
		f.agents = append(f.agents, a)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pod-" + a.node},
			Spec:       corev1.PodSpec{NodeName: a.node, Containers: []corev1.Container{{Name: "main", Image: "main"}}},
		}
		for v := range volumes {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "data-" + strconv.Itoa(v), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		}
		if err := c.api.Create(ctx, pod); err != nil {
			return nil, errors.Join(fmt.Errorf("create pod %s: %w", pod.Name, err), f.stop())
		}
		f.pods = append(f.pods, pod)
		if err := f.start(ctx, a, pod, mapper); err != nil {
			return nil, errors.Join(fmt.Errorf("start the agent of %s: %w", a.node, err), f.stop())
		}
	}
	return f, nil
}

// mapper is the one for all agents: in a cluster each of them asks the API server for it once, when it starts.
func (f *fleet) mapper() meta.RESTMapper {
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind := range f.scheme.AllKnownTypes() {
		scope := meta.RESTScopeNamespace
		if kind.Kind == "Node" || kind.Kind == "Namespace" {
			scope = meta.RESTScopeRoot
		}
		mapper.Add(kind, scope)
	}
	return mapper
}

// start runs an agent until the fleet stops, and returns when its watches have begun.
func (f *fleet) start(ctx context.Context, a *agent, pod *corev1.Pod, mapper meta.RESTMapper) error {
	hostPods := filepath.Join(f.dir, a.node)
	for _, v := range pod.Spec.Volumes {
		if err := os.MkdirAll(filepath.Join(hostPods, string(pod.UID), "volumes", "kubernetes.io~empty-dir", v.Name), 0o700); err != nil {
			return err
		}
	}
	mgr, err := ctrl.NewManager(f.config(a), ctrl.Options{
		Scheme: f.scheme, Cache: nodeagent.CacheOptions(namespace, a.node), Metrics: server.Options{BindAddress: "0"},
		Controller:     config.Controller{SkipNameValidation: new(true)},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
	})
	if err != nil {
		return err
	}
	data := uploadertest.NewFake(hostPods)
	data.OnBackup = f.backUp
	agent, err := nodeagent.SetUp(ctx, mgr, nodeagent.Config{
		Config: podvolume.Config{
			NodeName: a.node, Namespace: namespace, HostPods: hostPods, BackupTimeout: 4 * time.Hour,
			Uploaders: map[string]uploader.Uploader{uploaderType: data}, ProgressInterval: f.options.interval,
		},
		Concurrency: volumes,
	})
	if err != nil {
		return err
	}
	f.running.Go(func() {
		if err := mgr.Start(ctx); err != nil && ctx.Err() == nil {
			f.once.Do(func() { f.failed = err; f.cancel() })
		}
	})
	return f.poll(ctx, func() (bool, error) { return agent.Ready(nil) == nil, nil })
}

// config returns an agent's access to the API server, with the limits of the installed one.
func (f *fleet) config(a *agent) *rest.Config {
	cfg := f.plane.Config()
	cfg.QPS, cfg.Burst = 20, 40
	cfg.UserAgent = "plimsoll-node-agent/" + a.node
	cfg.Impersonate = rest.ImpersonationConfig{UserName: account, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}}
	var dialer net.Dialer
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, address)
		return countedConn{conn, &a.received}, err
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return timedWrites{next, &f.writes} })
	return cfg
}

// backUp is a data path that moves nothing, and reports until it is told to end.
func (f *fleet) backUp(ctx context.Context, _ uploader.BackupRequest, p progress.Sink) (uploader.BackupResult, error) {
	f.moving.Add(1)
	defer f.moving.Add(-1)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := int64(1); ; n++ {
		p.Report(progress.Reading{BytesDone: min(n<<20, volumeSize-1), TotalBytes: volumeSize, TotalFinal: true, FilesDone: n, CurrentItem: "/var/lib/data/file-" + strconv.FormatInt(n, 10)})
		select {
		case <-tick.C:
		case <-f.release:
			return uploader.BackupResult{SnapshotID: "0123456789abcdef0123456789abcdef", TotalBytes: volumeSize}, nil
		case <-ctx.Done():
			return uploader.BackupResult{}, context.Cause(ctx)
		}
	}
}

// begin creates all volumes, and waits until they move.
func (f *fleet) begin(ctx context.Context) error {
	if err := f.createVolumes(ctx); err != nil {
		return err
	}
	all := int64(volumes * len(f.agents))
	return f.poll(ctx, func() (bool, error) { return f.moving.Load() == all, nil })
}

// createVolumes creates the PodVolumeBackups of all nodes, as a server does.
func (f *fleet) createVolumes(ctx context.Context) error {
	for v := range volumes {
		for _, pod := range f.pods {
			pvb := velero.PodVolumeBackup(f.backup, pod, pod.Spec.Volumes[v].Name, uploaderType)
			if f.options.labelled {
				pvb.Labels[v1alpha1.LabelNode] = v1alpha1.LabelValue(pvb.Spec.Node)
			}
			if err := f.api.Create(ctx, pvb); err != nil {
				return fmt.Errorf("create a PodVolumeBackup: %w", err)
			}
		}
	}
	return nil
}

// end lets all volumes end, and waits until all objects say so.
func (f *fleet) end(ctx context.Context) error {
	close(f.release)
	err := f.poll(ctx, func() (bool, error) {
		var moving velerov1.PodVolumeBackupList // one of them is enough: thousands would cost the API server more than the agents do
		err := f.api.List(ctx, &moving, client.InNamespace(namespace), client.HasLabels{v1alpha1.LabelNode}, client.Limit(1))
		return err == nil && len(moving.Items) == 0, err
	})
	if err != nil {
		return err
	}
	var list velerov1.PodVolumeBackupList
	if err := f.api.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		if status := list.Items[i].Status; status.Phase != velerov1.PodVolumeBackupPhaseCompleted {
			return fmt.Errorf("PodVolumeBackup %s has ended as %q: %s", list.Items[i].Name, status.Phase, status.Message)
		}
	}
	return nil
}

// poll waits until a condition holds.
func (f *fleet) poll(ctx context.Context, holds func() (bool, error)) error {
	const patience = 20 * time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		if done, err := holds(); done || err != nil {
			return err
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
}

func (f *fleet) stop() error {
	f.cancel()
	f.running.Wait()
	return f.failed
}

// received returns the bytes that each agent has received.
func (f *fleet) received() []int64 {
	list := make([]int64, len(f.agents))
	for i, a := range f.agents {
		list[i] = a.received.Load()
	}
	return list
}

// countedConn counts the bytes that a connection receives, as they are on the wire.
type countedConn struct {
	net.Conn
	received *atomic.Int64
}

func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.received.Add(int64(n))
	return n, err
}
