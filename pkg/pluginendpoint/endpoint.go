// Package pluginendpoint takes over HTTP what package volumeplugin takes from plugins for Velero's volume snapshots, from
// those that are no Kubernetes clients, and writes the same VolumePluginBackups and VolumePluginRestores for them:
//
//	POST  /v1alpha1/volumepluginbackups         begin, or go on
//	PATCH /v1alpha1/volumepluginbackups/{name}  progress, the snapshot's id, the end
//	GET   /v1alpha1/volumepluginbackups/{name}
//
// and the same for volumepluginrestores. Whoever asks shows a token of Kubernetes, and may do what RBAC lets that user do
// with the objects themselves. What is written is what a Recorder writes: idempotent, throttled, never falling, nothing
// after the end.
//
// Whoever serves an Endpoint has to see to TLS: a token that is read on its way can be used by others.
package pluginendpoint

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
)

const (
	root           = "/v1alpha1/"
	maxBody        = 64 << 10 // bytes
	maxRequests    = 64       // at the same time; the others wait
	requestTimeout = 30 * time.Second
)

// Config says what an Endpoint serves. Namespace and Client must be set.
type Config struct {
	Namespace string // of the objects
	// Client has the rights of a plugin (docs/volume-plugins.md), and may create TokenReviews and SubjectAccessReviews. It
	// does not cache.
	Client   client.Client
	Audience string        // that tokens must be for; default: the API server's own
	Interval time.Duration // the least time between two reports of progress in an object; default volumeplugin's, 10 s
	// IdleAfter is how long an operation of which nothing is heard is kept in memory, and its object alive; default 5 min.
	// Nothing is lost then: with the next report it goes on.
	IdleAfter time.Duration
	Logger    *slog.Logger // default: discards
}

func (c *Config) setDefaults() {
	if c.IdleAfter <= 0 {
		c.IdleAfter = 5 * time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Endpoint is an http.Handler, and a Runnable of a manager. Several processes may serve at the same time, if each has called
// Watch: an operation goes on with whoever is told of it. Then some Events may come twice.
type Endpoint struct {
	cfg        Config
	routes     *http.ServeMux
	reviewer   *reviewer
	operations *operations
	slots      chan struct{}
}

// New returns an Endpoint. It answers once Start runs.
func New(cfg Config) *Endpoint {
	cfg.setDefaults()
	e := &Endpoint{
		cfg: cfg, routes: http.NewServeMux(), reviewer: newReviewer(cfg), operations: newOperations(cfg), slots: make(chan struct{}, maxRequests),
	}
	for _, k := range []kind{backups, restores} {
		e.routes.HandleFunc("POST "+root+k.resource, e.handler(k, access{verb: "create"}, e.begin))
		e.routes.HandleFunc("PATCH "+root+k.resource+"/{name}", e.handler(k, access{verb: "patch", subresource: "status"}, e.report))
		e.routes.HandleFunc("GET "+root+k.resource+"/{name}", e.handler(k, access{verb: "get"}, e.show))
	}
	e.routes.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusNotFound, failure{"there is nothing here: see docs/volume-plugins.md for the paths"})
	})
	return e
}

// Start looks after the operations until ctx ends. Those that are under way then stay in progress, for the next process.
func (e *Endpoint) Start(ctx context.Context) error {
	e.operations.run(ctx)
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every process serves, since a Service sends to all that are
// ready. If only the leader was, no Deployment could be rolled out: the new pod leads when the old one has gone, and that
// waits until the new one is ready.
func (e *Endpoint) NeedLeaderElection() bool { return false }

// Watch has the Endpoint take over from the objects what other processes have written, lest it takes an operation for stalled
// of which they hear. Where the CRDs are not installed it gives the error of meta.IsNoMatchError.
func (e *Endpoint) Watch(ctx context.Context, objects cache.Informers) error {
	learn := func(o any) {
		if object, ok := o.(client.Object); ok {
			e.operations.learn(object)
		}
	}
	for _, k := range []kind{backups, restores} {
		informer, err := objects.GetInformer(ctx, k.object(), cache.BlockUntilSynced(false))
		if err == nil {
			_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{UpdateFunc: func(_, after any) { learn(after) }})
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", k.resource, err)
		}
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (e *Endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	select {
	case e.slots <- struct{}{}:
		defer func() { <-e.slots }()
	case <-ctx.Done():
		respond(w, http.StatusServiceUnavailable, failure{"too many requests at the same time: try again"})
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	e.routes.ServeHTTP(w, r.WithContext(ctx))
}

// call is a request that has been let in.
type call struct {
	*http.Request

	kind kind
	name string // of the object, if the path has one
	user string
}

// answer is what a call has come to.
type answer struct {
	Name string `json:"name"`
	// Status is that of the object, as Kubernetes shows it. Absent: it is written later.
	Status any `json:"status,omitempty"`
}

// handler answers who may do what the access says.
func (e *Endpoint) handler(k kind, a access, do func(call) (int, answer, error)) http.HandlerFunc {
	a.resource = k.resource
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := e.letIn(r, k, a)
		var code int
		var result answer
		if err == nil {
			code, result, err = do(c)
		}
		if err == nil {
			respond(w, code, result)
			return
		}
		p := explain(err)
		e.cfg.Logger.Log(r.Context(), p.level(), "Report of a plugin was refused", "method", r.Method, "path", r.URL.Path, "code", p.code, "error", p.text)
		if p.code == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		respond(w, p.code, failure{p.text})
	}
}

func (e *Endpoint) letIn(r *http.Request, k kind, a access) (call, error) {
	a.name = r.PathValue("name")
	if a.name != "" && len(validation.IsDNS1123Subdomain(a.name)) > 0 {
		return call{}, problemf(http.StatusNotFound, "%q is no name of an object", a.name)
	}
	user, err := e.reviewer.admit(r.Context(), r.Header.Get("Authorization"), a)
	return call{Request: r, kind: k, name: a.name, user: user}, err
}

// begin makes an object, or finds the one with which it goes on.
func (e *Endpoint) begin(c call) (int, answer, error) {
	b, err := c.kind.begin(c, e.cfg)
	if err != nil {
		return 0, answer{}, err
	}
	object := b.object
	if !statusOf(object).Phase.Terminal() {
		op, err := e.operations.goOn(c.Context(), object)
		if err != nil {
			return 0, answer{}, err
		}
		e.cfg.Logger.Info("Plugin reports an operation", "user", c.user, "kind", c.kind.resource, "name", object.GetName())
		if object, err = e.identify(c, op, b); err != nil {
			return 0, answer{}, err
		}
	}
	return http.StatusOK, answer{Name: object.GetName(), Status: wholeStatus(object)}, nil
}

// identify writes the id with which an operation was asked for: a plugin that knows it from the begin tells it only here. It
// returns the object as it is then.
func (e *Endpoint) identify(c call, op *operation, b begun) (client.Object, error) {
	if b.id == "" {
		return b.object, nil
	}
	op.SetID(b.id)
	object, err := e.get(c.Context(), c.kind, b.object.GetName())
	if err == nil && idOf(object) != b.id {
		err = notWritten(b.id, object)
	}
	return object, err
}

// report passes on what a plugin says. Only what must not be lost, an id and the end, is written when it returns.
func (e *Endpoint) report(c call) (int, answer, error) {
	var said report
	if err := decode(c.Request, &said); err != nil {
		return 0, answer{}, err
	}
	if err := said.validate(c.kind); err != nil {
		return 0, answer{}, err
	}
	op, ended, err := e.find(c)
	if err != nil {
		return 0, answer{}, err
	}
	if ended == nil {
		if !op.tell(said) {
			return http.StatusAccepted, answer{Name: c.name}, nil
		}
		if ended, err = e.get(c.Context(), c.kind, c.name); err != nil {
			return 0, answer{}, err
		}
	}
	if err := said.check(ended); err != nil {
		return 0, answer{}, err
	}
	return http.StatusOK, answer{Name: c.name, Status: wholeStatus(ended)}, nil
}

// find returns the operation of a name, or its object if it has ended.
func (e *Endpoint) find(c call) (*operation, client.Object, error) {
	if op := e.operations.find(c.kind, c.name); op != nil {
		return op, nil, nil
	}
	object, err := e.get(c.Context(), c.kind, c.name)
	switch {
	case err != nil:
		return nil, nil, err
	case object.GetLabels()[v1alpha1.LabelSynced] != "":
		return nil, nil, problemf(http.StatusConflict, "%s %q was made in another cluster: begin one of your own", c.kind.resource, c.name)
	case statusOf(object).Phase.Terminal():
		return nil, object, nil
	}
	op, err := e.operations.goOn(c.Context(), object)
	return op, nil, err
}

func (e *Endpoint) show(c call) (int, answer, error) {
	object, err := e.get(c.Context(), c.kind, c.name)
	if err != nil {
		return 0, answer{}, err
	}
	return http.StatusOK, answer{Name: c.name, Status: wholeStatus(object)}, nil
}

func (e *Endpoint) get(ctx context.Context, k kind, name string) (client.Object, error) {
	object := k.object()
	if err := e.cfg.Client.Get(ctx, client.ObjectKey{Namespace: e.cfg.Namespace, Name: name}, object); err != nil {
		return nil, err
	}
	return object, nil
}

// newRecorder returns a Recorder that outlives ctx: it lives until it is closed.
func newRecorder(ctx context.Context, cfg Config, plugin string) *volumeplugin.Recorder {
	return volumeplugin.New(context.WithoutCancel(ctx), volumeplugin.Options{
		Plugin: plugin, Client: cfg.Client, Namespace: cfg.Namespace, Log: cfg.Logger, Interval: cfg.Interval,
	})
}

func respond(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // who does not read the answer is not told
}
