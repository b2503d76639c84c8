// Package filerequest answers FileRequests: it lists and reads the files of backups for whoever has a request's token.
//
// One process of a namespace, which holds the lease, serves HTTP on its pod's loopback address, where only a port-forward
// reaches it. A confined worker reads the repository for each answer; no credential leaves the pod. Package protocol is what
// clients say and hear.
package filerequest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// Repositories finds the repository of a backup, and the volumes of a Backup that only its location knows. It must be safe for concurrent use.
type Repositories interface {
	Of(ctx context.Context, pvb *velerov1.PodVolumeBackup) (uploader.Repository, error)
	Unsynced(ctx context.Context, backup string, known []velerov1.PodVolumeBackup, selector *v1alpha1.PodVolumeSelector) ([]velerov1.PodVolumeBackup, error)
}

// Config is the configuration of a Controller. Namespace, Pod, Browsers, Repositories and Metrics must be set.
type Config struct {
	Namespace    string // of the FileRequests and Backups
	Pod          string // the name of the pod that this process runs in
	Browsers     map[string]uploader.Browser
	Repositories Repositories
	Metrics      *Metrics

	Timeout      time.Duration // of a FileRequest, since its begin; default 1 h
	MaxOpen      int           // FileRequests at once; default 16
	MaxAnswers   int           // workers at once; further questions wait; default 4
	WriteTimeout time.Duration // how long a client may take none of an answer; default 5 min

	Logger *slog.Logger // default: discards
}

func (c *Config) setDefaults() {
	c.Timeout = cmp.Or(max(c.Timeout, 0), time.Hour)
	c.MaxOpen = cmp.Or(max(c.MaxOpen, 0), 16)
	c.MaxAnswers = cmp.Or(max(c.MaxAnswers, 0), 4)
	c.WriteTimeout = cmp.Or(max(c.WriteTimeout, 0), 5*time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Metrics counts FileRequests, a prometheus.Collector.
type Metrics struct{ *prometheus.CounterVec }

// NewMetrics returns a Metrics.
func NewMetrics() *Metrics {
	m := &Metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "plimsoll_file_requests_total", Help: "Number of FileRequests that were answered with this phase.",
	}, []string{"phase"})}
	for _, phase := range []v1alpha1.FileRequestPhase{v1alpha1.FileRequestReady, v1alpha1.FileRequestFailed} {
		m.WithLabelValues(string(phase))
	}
	return m
}

// Controller opens and ends the sessions of FileRequests.
type Controller struct {
	cfg    Config
	client client.Client // writes
	api    client.Reader // reads what must be fresh
	server *server
	port   int32
}

// SetUp adds a Controller to mgr, whose cache must be restricted to the namespace, and whose scheme must know velero.io/v1 and
// plimsoll.io/v1alpha1. Where the API server does not know FileRequests, because its CRDs are of an earlier version, nothing is added
// and the log says so.
func SetUp(mgr ctrl.Manager, cfg Config) error {
	cfg.setDefaults()
	_, err := mgr.GetRESTMapper().RESTMapping(schema.GroupKind{Group: v1alpha1.GroupVersion.Group, Kind: "FileRequest"})
	if meta.IsNoMatchError(err) {
		cfg.Logger.Warn("The CRD of FileRequests is not installed; nobody can browse backups until it is and this process is restarted")
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for the CRD of FileRequests: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it returns at once
	if err != nil {
		return fmt.Errorf("listen for questions about files: %w", err)
	}
	c := &Controller{cfg: cfg, client: mgr.GetClient(), api: mgr.GetAPIReader(), server: newServer(&cfg)}
	c.port = int32(listener.Addr().(*net.TCPAddr).Port)
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { return c.server.serve(ctx, listener) })); err != nil {
		return fmt.Errorf("serve files: %w", err)
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&v1alpha1.FileRequest{}).Complete(reconcile.Func(c.reconcile)); err != nil {
		return fmt.Errorf("watch FileRequests: %w", err)
	}
	return nil
}

// reconcile opens the session of a new FileRequest, and ends it when the FileRequest is gone or its time is over.
func (c *Controller) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var r v1alpha1.FileRequest
	err := c.api.Get(ctx, req.NamespacedName, &r)
	gone := apierrors.IsNotFound(err) || r.DeletionTimestamp != nil
	if err != nil && !gone {
		return reconcile.Result{}, err
	}
	if gone {
		c.server.end(req.Name, "")
		return reconcile.Result{}, nil
	}
	c.server.end(req.Name, r.UID) // one of an earlier object with this name
	switch {
	case r.Status.Phase == "" && time.Since(r.CreationTimestamp.Time) < c.cfg.Timeout:
		return c.open(ctx, &r)
	case r.Status.Phase == "", r.Status.ExpirationTimestamp == nil:
		return c.delete(ctx, &r, "nobody has answered it in time")
	case r.Status.Phase == v1alpha1.FileRequestReady && !c.server.has(r.Name):
		return c.delete(ctx, &r, "the process that answered it has ended")
	}
	left := time.Until(r.Status.ExpirationTimestamp.Time)
	switch {
	case left > 0:
		return reconcile.Result{RequeueAfter: left}, nil
	case !c.server.retire(r.Name):
		return reconcile.Result{RequeueAfter: time.Second}, nil // the last answer goes on
	}
	return c.delete(ctx, &r, "its time is over")
}

func (c *Controller) delete(ctx context.Context, r *v1alpha1.FileRequest, why string) (reconcile.Result, error) {
	c.cfg.Logger.Info("Deleting a FileRequest", "request", r.Name, "reason", why)
	c.server.end(r.Name, "")
	return reconcile.Result{}, client.IgnoreNotFound(c.client.Delete(ctx, r, client.Preconditions{UID: &r.UID}))
}

// open begins a session, and then tells the client where it is: who reads the status finds the session.
func (c *Controller) open(ctx context.Context, r *v1alpha1.FileRequest) (reconcile.Result, error) {
	selected, err := c.selectAll(ctx, &r.Spec)
	if err == nil && !c.server.begin(ctx, r, selected.backups, selected.others) {
		err = &repositorytask.RefusedError{
			Reason: v1alpha1.ReasonTooManyFileRequests, Message: fmt.Sprintf("%d FileRequests are open in this namespace, and no more are kept", c.cfg.MaxOpen),
		}
	}
	status := v1alpha1.FileRequestStatus{
		Phase: v1alpha1.FileRequestReady, Pod: c.cfg.Pod, Port: c.port, ExpirationTimestamp: &metav1.Time{Time: time.Now().Add(c.cfg.Timeout)},
	}
	if selected.listMissing != nil {
		status.Reason, status.Message = v1alpha1.ReasonBackupDamaged, text.Line(selected.listMissing.Error(), maxMessage)
	}
	if refused, ok := errors.AsType[*repositorytask.RefusedError](err); ok {
		status.Phase, status.Pod, status.Port = v1alpha1.FileRequestFailed, "", 0
		status.Reason, status.Message = refused.Reason, text.Line(refused.Message, maxMessage)
	} else if err != nil {
		return reconcile.Result{}, err
	}
	before := client.MergeFrom(r.DeepCopy())
	r.Status = status
	if err := c.client.Status().Patch(ctx, r, before); err != nil {
		c.server.end(r.Name, "")
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	c.cfg.Metrics.WithLabelValues(string(status.Phase)).Inc()
	c.cfg.Logger.Info("FileRequest answered", "request", r.Name, "phase", status.Phase, "backup", r.Spec.Backup, "volumes", len(selected.backups)+len(selected.others), "message", status.Message)
	return reconcile.Result{RequeueAfter: c.cfg.Timeout}, nil
}

// maxMessage is the CRD's bound of a message, in bytes.
const maxMessage = 1024

// selected are the PodVolumeBackups that a FileRequest is about, and those that they may be compared with.
type selected struct {
	backups, others []velerov1.PodVolumeBackup
	listMissing     error // of a Backup, wraps repositorytask.ErrListMissing: the cluster may not have all of its volumes
}

func (c *Controller) selectAll(ctx context.Context, spec *v1alpha1.FileRequestSpec) (s selected, err error) {
	selection := repositorytask.Selection{Backup: spec.Backup, PodVolumeBackup: spec.PodVolumeBackup, Volume: spec.Volume}
	if s.backups, err = s.withoutList(c.selectBackups(ctx, selection)); err != nil || spec.Other == nil {
		return s, err
	}
	other := repositorytask.Selection{Backup: spec.Other.Backup, PodVolumeBackup: spec.Other.PodVolumeBackup, Volume: spec.Other.Volume}
	s.others, err = s.withoutList(c.selectBackups(ctx, other))
	return s, err
}

// withoutList keeps the error of a Backup without a list apart: what the cluster has of it can be read.
func (s *selected) withoutList(backups []velerov1.PodVolumeBackup, err error) ([]velerov1.PodVolumeBackup, error) {
	if errors.Is(err, repositorytask.ErrListMissing) {
		s.listMissing, err = err, nil
	}
	return backups, err
}

// selectBackups returns the selected PodVolumeBackups, sorted by volume, and the newest of each volume first. With an error that wraps
// repositorytask.ErrListMissing they are those of the cluster.
func (c *Controller) selectBackups(ctx context.Context, selection repositorytask.Selection) ([]velerov1.PodVolumeBackup, error) {
	selected, err := c.selectUnsorted(ctx, selection)
	newestFirst(selected)
	return selected, err
}

func (c *Controller) selectUnsorted(ctx context.Context, selection repositorytask.Selection) ([]velerov1.PodVolumeBackup, error) {
	if selection.PodVolumeBackup != "" {
		return selection.PodVolumeBackups(ctx, c.api, c.cfg.Namespace)
	}
	if selection.Backup != "" {
		selected, err := selection.PodVolumeBackups(ctx, c.api, c.cfg.Namespace)
		if err != nil {
			return nil, err
		}
		unsynced, err := c.cfg.Repositories.Unsynced(ctx, selection.Backup, selected, selection.Volume)
		return append(selected, unsynced...), err
	}
	var list velerov1.PodVolumeBackupList
	if err := c.api.List(ctx, &list, client.InNamespace(c.cfg.Namespace)); err != nil {
		return nil, fmt.Errorf("list the PodVolumeBackups: %w", err)
	}
	selected := slices.DeleteFunc(list.Items, func(pvb velerov1.PodVolumeBackup) bool {
		return !selection.Volume.Selects(&pvb.Spec.Pod, pvb.Spec.Volume)
	})
	if len(selected) == 0 {
		what := ""
		if selection.Volume != nil {
			what = " of volume " + selection.Volume.String()
		}
		return nil, &repositorytask.RefusedError{
			Reason: v1alpha1.ReasonNoPodVolumes, Message: fmt.Sprintf("namespace %s has no PodVolumeBackup%s", c.cfg.Namespace, what),
		}
	}
	return selected, nil
}
