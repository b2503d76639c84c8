package pluginendpoint

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
)

// patience is how long a test waits for what must come. Nothing waits for it to pass.
const patience = 2 * time.Minute

// plane is the control plane of this package's tests.
var plane = controlplane.Shared{CRDs: controlplane.OurCRDs}

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(plane.Main(m))
}

// site is a namespace with an endpoint, and a plugin that has the rights of deploy/volume-plugin.
type site struct {
	t      *testing.T
	client client.WithWatch
	cache  cache.Cache // of the namespace
	ns     string
	token  string
	// asked counts the questions to the API server about tokens.
	asked atomic.Int32
}

func newSite(t *testing.T) *site {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	cfg := plane.Get(t).Config()
	cfg.QPS, cfg.Burst = -1, -1
	s := &site{t: t}
	var err error
	if s.client, err = client.NewWithWatch(cfg, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "velero-"}}
	s.create(namespace)
	s.ns = namespace.Name
	if s.cache, err = cache.New(cfg, cache.Options{Scheme: scheme, DefaultNamespaces: map[string]cache.Config{s.ns: {}}}); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() { _ = s.cache.Start(t.Context()) })
	t.Cleanup(group.Wait)
	role := &rbacv1.Role{}
	read(t, "volume-plugin/rbac.yaml", role)
	role.Namespace = s.ns
	s.create(role)
	s.create(&rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "plugin"},
		RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: s.ns, Name: "plugin"}},
	})
	s.token = s.account("plugin")
	return s
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		t.Fatal(name, err)
	}
}

func (s *site) create(o client.Object) {
	s.t.Helper()
	if err := s.client.Create(s.t.Context(), o); err != nil {
		s.t.Fatal(err)
	}
}

// account makes a service account and returns a token of it for the audiences.
func (s *site) account(name string, audiences ...string) string {
	s.t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}
	if err := s.client.Create(s.t.Context(), account); client.IgnoreAlreadyExists(err) != nil {
		s.t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	if err := s.client.SubResource("token").Create(s.t.Context(), account, request); err != nil {
		s.t.Fatal(err)
	}
	return request.Status.Token
}

// server is an endpoint that runs.
type server struct {
	*Endpoint

	s    *site
	url  string
	stop func()
}

// serve runs an endpoint until the test or stop ends it.
func (s *site) serve(tune func(*Config)) *server {
	s.t.Helper()
	cfg := Config{Namespace: s.ns, Interval: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(s.t.Output(), nil))}
	cfg.Client = interceptor.NewClient(s.client, interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			switch o.(type) {
			case *authenticationv1.TokenReview, *authorizationv1.SubjectAccessReview:
				s.asked.Add(1)
			}
			return api.Create(ctx, o, opts...)
		},
	})
	if tune != nil {
		tune(&cfg)
	}
	e := New(cfg)
	if err := e.Watch(s.t.Context(), s.cache); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.t.Context()))
	var group sync.WaitGroup
	group.Go(func() { _ = e.Start(ctx) })
	listener := httptest.NewServer(e)
	v := &server{Endpoint: e, s: s, url: listener.URL, stop: sync.OnceFunc(func() { cancel(); group.Wait(); listener.Close() })}
	s.t.Cleanup(v.stop)
	s.until("it serves", func() bool {
		e.operations.mu.Lock()
		defer e.operations.mu.Unlock()
		return e.operations.serves
	})
	return v
}

// reply is an answer or a failure.
type reply struct {
	Name   string
	Error  string
	Status struct {
		v1alpha1.VolumePluginBackupStatus

		VolumeID string
	}
}

// send sends a request with the plugin's token unless there is a header.
func (v *server) send(method, path, body string, header http.Header) (int, reply) {
	v.s.t.Helper()
	request, err := http.NewRequestWithContext(v.s.t.Context(), method, v.url+path, strings.NewReader(body))
	if err != nil {
		v.s.t.Fatal(err)
	}
	request.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + v.s.token}}
	maps.Copy(request.Header, header)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		v.s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		v.s.t.Fatal(err)
	}
	var r reply
	if err := json.Unmarshal(text, &r); err != nil {
		r.Error = string(text)
	}
	return response.StatusCode, r
}

func (v *server) ask(method, path, body string, want int) reply {
	v.s.t.Helper()
	code, r := v.send(method, path, body, nil)
	if code != want {
		v.s.t.Fatalf("%s %s %s: %d, want %d: %s", method, path, body, code, want, r.Error)
	}
	return r
}

const (
	backupsPath  = "/v1alpha1/volumepluginbackups"
	restoresPath = "/v1alpha1/volumepluginrestores"
	beginNight   = `{"plugin": "example.io/array", "backup": "nightly", "volume": "pv-1", "pluginSpecific": {"pool": "a"}}`
)

func (s *site) until(what string, is func() bool) {
	s.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); !is(); {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("%s: waited in vain", what)
		}
	}
}

func (s *site) backup(name string) v1alpha1.VolumePluginBackup {
	s.t.Helper()
	var b v1alpha1.VolumePluginBackup
	if err := s.client.Get(s.t.Context(), client.ObjectKey{Namespace: s.ns, Name: name}, &b); err != nil {
		s.t.Fatal(err)
	}
	return b
}

// TestBackupIsReported goes through a backup, with the endpoint stopped in the middle and another one after it.
func TestBackupIsReported(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.serve(nil)
	name := v.ask(http.MethodPost, backupsPath, beginNight, http.StatusOK).Name
	path := backupsPath + "/" + name
	v.ask(http.MethodPatch, path, `{"totalBytes": 100}`, http.StatusAccepted)
	v.ask(http.MethodPatch, path, `{"bytesDone": 40}`, http.StatusAccepted)
	s.until("progress is in the object", func() bool { return s.backup(name).Status.Progress.BytesDone == 40 })
	v.ask(http.MethodPatch, path, `{"bytesDone": 20, "phase": "InProgress"}`, http.StatusAccepted) // it does not fall
	if got := v.ask(http.MethodPost, backupsPath, beginNight, http.StatusOK).Name; got != name {
		t.Errorf("it begins %q again, want %q", got, name)
	}
	before := s.backup(name)
	v.ask(http.MethodPatch, path, `{"bytesDone": 50}`, http.StatusAccepted)
	v.stop() // it writes what it was told last
	if b := s.backup(name); b.Status.Progress != (v1alpha1.VolumeOperationProgress{BytesDone: 50, TotalBytes: 100}) || b.Status.Phase != v1alpha1.PhaseInProgress {
		t.Errorf("after the stop it is %+v", b.Status)
	}

	v = s.serve(nil)
	v.ask(http.MethodPatch, path, `{"bytesDone": 60}`, http.StatusAccepted)
	s.until("it goes on", func() bool { return s.backup(name).Status.Progress.BytesDone == 60 })
	if got := v.ask(http.MethodPatch, path, `{"snapshotID": "Snap/1"}`, http.StatusOK).Status.SnapshotID; got != "Snap/1" {
		t.Errorf("it answers with id %q", got)
	}
	end := v.ask(http.MethodPatch, path, `{"phase": "Completed"}`, http.StatusOK).Status
	if end.Phase != v1alpha1.PhaseCompleted || *end.Percent != 100 || end.Progress.BytesDone != 100 || !end.StartTimestamp.Equal(before.Status.StartTimestamp) {
		t.Errorf("it ends as %+v", end)
	}
	v.ask(http.MethodPatch, path, `{"phase": "Completed"}`, http.StatusOK) // the answer was lost
	v.ask(http.MethodPatch, path, `{"phase": "Failed", "message": "no"}`, http.StatusConflict)
	v.ask(http.MethodPatch, path, `{"bytesDone": 1}`, http.StatusConflict)
	v.ask(http.MethodPatch, path, `{"snapshotID": "Snap/1", "phase": "Completed"}`, http.StatusOK)
	v.ask(http.MethodPatch, path, `{"snapshotID": "Snap/2", "phase": "Completed"}`, http.StatusConflict)
	if got := v.ask(http.MethodGet, path, "", http.StatusOK).Status; got.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("it is %+v", got)
	}
	b := s.backup(name)
	if diff := cmp.Diff(v1alpha1.VolumePluginBackupSpec{Plugin: "example.io/array", Backup: "nightly", Volume: "pv-1", PluginSpecific: map[string]string{"pool": "a"}}, b.Spec); diff != "" {
		t.Error(diff)
	}
	if n := s.asked.Load(); n > 20 {
		t.Errorf("the API server was asked %d times about one token", n)
	}
}

// TestTwoProcessesServe reports one backup now to one process, now to another, as a Service distributes requests.
func TestTwoProcessesServe(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v, w := s.serve(nil), s.serve(nil)
	name := v.ask(http.MethodPost, backupsPath, beginNight, http.StatusOK).Name
	if got := w.ask(http.MethodPost, backupsPath, beginNight, http.StatusOK).Name; got != name {
		t.Errorf("the other one begins %q, want %q", got, name)
	}
	path := backupsPath + "/" + name
	v.ask(http.MethodPatch, path, `{"totalBytes": 100, "bytesDone": 10}`, http.StatusAccepted)
	w.ask(http.MethodPatch, path, `{"bytesDone": 60}`, http.StatusAccepted)
	s.until("who was not told knows of it", func() bool {
		op := v.operations.find(backups, name)
		op.mu.Lock()
		defer op.mu.Unlock()
		return op.done == 60
	})
	v.ask(http.MethodPatch, path, `{"totalBytes": 200}`, http.StatusAccepted)
	w.ask(http.MethodPatch, path, `{"snapshotID": "snap-1"}`, http.StatusOK)
	s.until("all is in the object", func() bool {
		return s.backup(name).Status.Progress == v1alpha1.VolumeOperationProgress{BytesDone: 60, TotalBytes: 200}
	})
	v.ask(http.MethodPatch, path, `{"phase": "Completed"}`, http.StatusOK)
	w.ask(http.MethodPatch, path, `{"phase": "Completed"}`, http.StatusOK) // the answer was lost
	w.ask(http.MethodPatch, path, `{"phase": "Failed"}`, http.StatusConflict)
	if st := s.backup(name).Status; st.Phase != v1alpha1.PhaseCompleted || st.SnapshotID != "snap-1" || st.Progress.BytesDone != 200 {
		t.Errorf("it ends as %+v", st)
	}
}

func TestRestoreIsReported(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.serve(nil)
	const path, begin = restoresPath, `{"plugin": "example.io/array", "snapshotID": "snap-1", "backup": "nightly"}`
	name, other := v.ask(http.MethodPost, path, begin, http.StatusOK).Name, v.ask(http.MethodPost, path, begin, http.StatusOK).Name
	if name == other {
		t.Error("two restores are one: without a volume each is of its own")
	}
	v.ask(http.MethodPatch, path+"/"+name, `{"volumeID": "vol-1", "bytesDone": 5, "totalBytes": 10}`, http.StatusOK)
	v.ask(http.MethodPatch, path+"/"+name, `{"snapshotID": "x"}`, http.StatusBadRequest)
	v.ask(http.MethodPatch, path+"/"+name, `{"phase": "Failed", "message": "no room"}`, http.StatusOK)
	var r v1alpha1.VolumePluginRestore
	if err := s.client.Get(t.Context(), client.ObjectKey{Namespace: s.ns, Name: name}, &r); err != nil {
		t.Fatal(err)
	}
	if r.Status.Phase != v1alpha1.PhaseFailed || r.Status.Message != "no room" || r.Status.VolumeID != "vol-1" || r.Status.Progress.BytesDone != 5 || r.Spec.Backup != "nightly" {
		t.Errorf("it is %+v %+v", r.Spec, r.Status)
	}
}

// TestIDOfTheBeginIsWritten tells the id with the begin and never again: the object has it, and the same begin finds it.
func TestIDOfTheBeginIsWritten(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for what, tc := range map[string]struct{ path, begin, later string }{
		"backup": {
			backupsPath, `{"plugin": "example.io/array", "backup": "nightly", "volume": "pv-1", "snapshotID": "Snap/1"}`,
			`{"plugin": "example.io/array", "backup": "nightly", "volume": "pv-2"}`,
		},
		"restore": {
			restoresPath, `{"plugin": "example.io/array", "snapshotID": "Snap/1", "volumeID": "Vol/1"}`,
			`{"plugin": "example.io/array", "snapshotID": "Snap/2"}`,
		},
	} {
		v := s.serve(nil)
		id := func(r reply) string { return r.Status.SnapshotID + r.Status.VolumeID }
		want := map[string]string{"backup": "Snap/1", "restore": "Vol/1"}[what]
		first := v.ask(http.MethodPost, tc.path, tc.begin, http.StatusOK)
		if id(first) != want {
			t.Errorf("%s: the begin answers with id %q, want %q", what, id(first), want)
		}
		end := v.ask(http.MethodPatch, tc.path+"/"+first.Name, `{"phase": "Completed"}`, http.StatusOK)
		if id(end) != want || end.Status.Phase != v1alpha1.PhaseCompleted {
			t.Errorf("%s ends as %+v", what, end.Status)
		}
		again := v.ask(http.MethodPost, tc.path, tc.begin, http.StatusOK)
		if again.Name != first.Name || again.Status.Phase != v1alpha1.PhaseCompleted {
			t.Errorf("%s: after the end the same begin answers %+v, want %s", what, again, first.Name)
		}
		if later := v.ask(http.MethodPost, tc.path, tc.later, http.StatusOK); id(later) != "" {
			t.Errorf("%s: one without an id has %q", what, id(later))
		}
	}
}

// TestIdleOperationIsLeft sees that a plugin of which nothing is heard does not look alive, and can go on.
func TestIdleOperationIsLeft(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var e *Endpoint
	cfg := Config{Namespace: s.ns, Client: s.client, IdleAfter: 50 * time.Millisecond, Interval: 10 * time.Millisecond}
	e = New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = e.Start(ctx) }()
	count := func() int {
		e.operations.mu.Lock()
		defer e.operations.mu.Unlock()
		return len(e.operations.all)
	}
	listener := httptest.NewServer(e)
	defer listener.Close()
	v := &server{s: s, url: listener.URL}
	var name string
	s.until("it has begun", func() bool {
		code, r := v.send(http.MethodPost, backupsPath, beginNight, nil)
		name = r.Name
		return code == http.StatusOK
	})
	s.until("it is left", func() bool { return count() == 0 })
	if b := s.backup(name); b.Status.Phase != v1alpha1.PhaseInProgress {
		t.Errorf("it is %+v", b.Status)
	}
	if end := v.ask(http.MethodPatch, backupsPath+"/"+name, `{"phase": "Completed"}`, http.StatusOK); end.Status.Phase != v1alpha1.PhaseCompleted {
		t.Errorf("it ends as %+v", end)
	}
}

func TestRequestsAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.serve(nil)
	name := v.ask(http.MethodPost, backupsPath, beginNight, http.StatusOK).Name
	synced := &v1alpha1.VolumePluginBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "synced", Labels: map[string]string{v1alpha1.LabelSynced: "default"}},
		Spec:       v1alpha1.VolumePluginBackupSpec{Plugin: "p", Backup: "b", Volume: "v"},
	}
	s.create(synced)
	stranger := s.account("stranger")
	longID := strings.Repeat("x", 2049)
	as := func(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }
	for what, tc := range map[string]struct {
		method, path, body string
		header             http.Header
		code               int
		want               string
	}{
		"no token":               {http.MethodPost, backupsPath, beginNight, http.Header{"Authorization": nil}, 401, "Bearer TOKEN"},
		"another scheme":         {http.MethodPost, backupsPath, beginNight, http.Header{"Authorization": {"Basic YTpi"}}, 401, "Bearer TOKEN"},
		"made-up token":          {http.MethodPost, backupsPath, beginNight, as("made-up"), 401, "does not accept"},
		"token for somebody":     {http.MethodPost, backupsPath, beginNight, as(s.account("plugin", "vault")), 401, "does not accept"},
		"long token":             {http.MethodPost, backupsPath, beginNight, as(strings.Repeat("x", 20<<10)), 401, "Bearer TOKEN"},
		"stranger begins":        {http.MethodPost, backupsPath, beginNight, as(stranger), 403, "stranger may not create volumepluginbackups in namespace " + s.ns},
		"stranger reports":       {http.MethodPatch, backupsPath + "/" + name, `{"bytesDone": 1}`, as(stranger), 403, "may not patch volumepluginbackups/status"},
		"stranger looks":         {http.MethodGet, backupsPath + "/" + name, "", as(stranger), 403, "may not get"},
		"form":                   {http.MethodPost, backupsPath, "plugin=x", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, 415, "application/json"},
		"no JSON":                {http.MethodPost, backupsPath, "plugin=x", nil, 400, "JSON"},
		"nothing":                {http.MethodPost, backupsPath, "", nil, 400, "JSON"},
		"two bodies":             {http.MethodPost, backupsPath, beginNight + beginNight, nil, 400, "something follows"},
		"unknown field":          {http.MethodPost, backupsPath, `{"plugins": "x"}`, nil, 400, `unknown field \"plugins\"`},
		"too large":              {http.MethodPost, backupsPath, `{"plugin": "` + strings.Repeat("x", maxBody) + `"}`, nil, 413, "larger than 65536"},
		"no volume":              {http.MethodPost, backupsPath, `{"plugin": "x", "backup": "b"}`, nil, 400, "must be set"},
		"no snapshot":            {http.MethodPost, restoresPath, `{"plugin": "x"}`, nil, 400, "must be set"},
		"refused by the CRD":     {http.MethodPost, backupsPath, `{"plugin": "x", "backup": "b", "volume": "` + strings.Repeat("x", 300) + `"}`, nil, 422, "spec.volume"},
		"nothing to report":      {http.MethodPatch, backupsPath + "/" + name, `{}`, nil, 400, "reports nothing"},
		"negative":               {http.MethodPatch, backupsPath + "/" + name, `{"bytesDone": -1}`, nil, 400, "negative"},
		"fraction":               {http.MethodPatch, backupsPath + "/" + name, `{"bytesDone": 1.5}`, nil, 400, "JSON"},
		"more than all":          {http.MethodPatch, backupsPath + "/" + name, `{"bytesDone": 2, "totalBytes": 1}`, nil, 400, "more than"},
		"unknown phase":          {http.MethodPatch, backupsPath + "/" + name, `{"phase": "Done"}`, nil, 400, "none of"},
		"message without end":    {http.MethodPatch, backupsPath + "/" + name, `{"message": "hello"}`, nil, 400, "Failed only"},
		"field of restores":      {http.MethodPatch, backupsPath + "/" + name, `{"volumeID": "v"}`, nil, 400, "snapshotID"},
		"long id":                {http.MethodPatch, backupsPath + "/" + name, `{"snapshotID": "` + longID + `"}`, nil, 400, "at most 2048 bytes"},
		"begin with a long id":   {http.MethodPost, backupsPath, `{"plugin": "x", "backup": "b", "volume": "v", "snapshotID": "` + longID + `"}`, nil, 400, "at most 2048 bytes"},
		"restore to a long id":   {http.MethodPost, restoresPath, `{"plugin": "x", "snapshotID": "s", "volumeID": "` + longID + `"}`, nil, 400, "at most 2048 bytes"},
		"restore of a long id":   {http.MethodPost, restoresPath, `{"plugin": "x", "snapshotID": "` + longID + `"}`, nil, 400, "at most 2048 bytes"},
		"no such object":         {http.MethodPatch, backupsPath + "/nobody", `{"bytesDone": 1}`, nil, 404, "no such object"},
		"no name":                {http.MethodGet, backupsPath + "/UPPER", "", nil, 404, "no name"},
		"of another cluster":     {http.MethodPatch, backupsPath + "/synced", `{"bytesDone": 1}`, nil, 409, "another cluster"},
		"no such path":           {http.MethodGet, "/metrics", "", nil, 404, "nothing here"},
		"deletion is not for us": {http.MethodDelete, backupsPath + "/" + name, "", nil, 404, "nothing here"},
	} {
		code, r := v.send(tc.method, tc.path, tc.body, tc.header)
		if text, _ := json.Marshal(r.Error); code != tc.code || !bytes.Contains(text, []byte(tc.want)) {
			t.Errorf("%s: %d %s, want %d with %q", what, code, text, tc.code, tc.want)
		}
	}
	if b := s.backup(name); b.Status.Progress.BytesDone != 0 {
		t.Errorf("it is %+v", b.Status)
	}
}

// TestAudience takes tokens for the audience only.
func TestAudience(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	// The API server must know the audience, which one knows of its own name only, so that is asked for.
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: s.token}}
	s.create(review)
	own := review.Status.Audiences[0]
	v := s.serve(func(cfg *Config) { cfg.Audience = own })
	v.ask(http.MethodPost, backupsPath, beginNight, http.StatusOK)
	other := s.serve(func(cfg *Config) { cfg.Audience = "plimsoll" })
	other.ask(http.MethodPost, backupsPath, beginNight, http.StatusUnauthorized)
	s.token = s.account("plugin", "plimsoll")
	other.ask(http.MethodPost, backupsPath, beginNight, http.StatusOK)
	v.ask(http.MethodPost, backupsPath, beginNight, http.StatusUnauthorized)
}

// TestDeletedObjectIsNotReported deletes the object under an operation.
func TestDeletedObjectIsNotReported(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	v := s.serve(nil)
	name := v.ask(http.MethodPost, backupsPath, beginNight, http.StatusOK).Name
	if err := s.client.Delete(t.Context(), &v1alpha1.VolumePluginBackup{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}); err != nil {
		t.Fatal(err)
	}
	s.until("it is not there", func() bool {
		code, _ := v.send(http.MethodPatch, backupsPath+"/"+name, `{"bytesDone": 1}`, nil)
		return code == http.StatusNotFound
	})
}

// TestOutage refuses the writes of an object for a while: what must not be lost is not said to be written.
func TestOutage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var away atomic.Bool
	v := s.serve(func(cfg *Config) {
		cfg.Client = interceptor.NewClient(s.client, interceptor.Funcs{
			SubResourcePatch: func(ctx context.Context, api client.Client, sub string, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
				if away.Load() {
					return errors.New("connection refused by the test")
				}
				return api.SubResource(sub).Patch(ctx, o, patch, opts...)
			},
		})
	})
	name := v.ask(http.MethodPost, backupsPath, beginNight, http.StatusOK).Name
	away.Store(true)
	v.ask(http.MethodPatch, backupsPath+"/"+name, `{"phase": "Completed"}`, http.StatusServiceUnavailable)
	away.Store(false)
	s.until("it is written all the same", func() bool { return s.backup(name).Status.Phase == v1alpha1.PhaseCompleted })
	v.ask(http.MethodPatch, backupsPath+"/"+name, `{"phase": "Completed"}`, http.StatusOK)
}

// TestRightsAreTakenAway sees that a decision does not last.
func TestRightsAreTakenAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := newReviewer(Config{Namespace: s.ns, Client: s.client})
	a := access{verb: "create", resource: backups.resource}
	if user, err := r.admit(t.Context(), "Bearer "+s.token, a); err != nil || user != "system:serviceaccount:"+s.ns+":plugin" {
		t.Fatal(user, err)
	}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "plugin"}}
	if err := s.client.Patch(t.Context(), binding, client.RawPatch(types.MergePatchType, []byte(`{"subjects": []}`))); err != nil {
		t.Fatal(err)
	}
	if _, err := r.admit(t.Context(), "Bearer "+s.token, a); err != nil {
		t.Error("it is not remembered:", err)
	}
	for key, d := range r.known {
		d.until = time.Now()
		r.known[key] = d
	}
	s.until("it is refused", func() bool {
		clear(r.known)
		_, err := r.admit(t.Context(), "Bearer "+s.token, a)
		return err != nil
	})
}

// FuzzBodies feeds what is decoded: it gives a report that makes sense, or an error that is the plugin's.
func FuzzBodies(f *testing.F) {
	for _, seed := range []string{beginNight, `{"bytesDone": 1, "totalBytes": 2}`, `{"phase": "Failed", "message": "x"}`, `[]`, `null`, `{"bytesDone": 1e300}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPatch, "/", bytes.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		var said report
		err := decode(request, &said)
		if err == nil {
			err = said.validate(backups)
		}
		if p := (*problem)(nil); err != nil && (!errors.As(err, &p) || p.code/100 != 4) {
			t.Errorf("%q: %v", body, err)
		}
		if err == nil && (said.VolumeID != "" || said.BytesDone != nil && *said.BytesDone < 0) {
			t.Errorf("%q gives %+v", body, said)
		}
	})
}
