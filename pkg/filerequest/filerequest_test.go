package filerequest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/filerequest/protocol"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// oneFile is a snapshot with one file, that is read as the test wants.
type oneFile struct {
	content string
	read    func(ctx context.Context, w io.Writer) error // nil: writes content
}

func (f *oneFile) List(_ context.Context, req uploader.BrowseRequest, entry func(uploader.Entry) error) error {
	if inner := req.Inner(); inner != "" && inner != "file" {
		return uploader.ErrPathNotFound
	}
	return entry(uploader.Entry{Path: "file", Size: int64(len(f.content))})
}

func (f *oneFile) Read(ctx context.Context, _ uploader.BrowseRequest, w io.Writer) error {
	if f.read != nil {
		return f.read(ctx, w)
	}
	_, err := io.WriteString(w, f.content)
	return err
}

// Diff says that the file has the snapshot's id as content.
func (f *oneFile) Diff(_ context.Context, req uploader.DiffRequest, change func(uploader.Change) error) error {
	if req.To == "damaged" {
		return errors.Join(change(uploader.Change{From: &uploader.Entry{Path: "file"}}), errors.New("a directory is lost"))
	}
	return change(uploader.Change{From: &uploader.Entry{Path: "file", Size: int64(len(req.From))}, To: &uploader.Entry{Path: "file", Size: int64(len(req.To)), UID: 1}, Content: true})
}

type noRepositories struct{}

func (noRepositories) Of(context.Context, *velerov1.PodVolumeBackup) (uploader.Repository, error) {
	return uploader.Repository{}, nil
}

func (noRepositories) Unsynced(context.Context, string, []velerov1.PodVolumeBackup, *v1alpha1.PodVolumeSelector) ([]velerov1.PodVolumeBackup, error) {
	return nil, nil
}

func config(browser uploader.Browser) Config {
	return Config{Pod: "pod-1", Browsers: map[string]uploader.Browser{"restic": browser}, Repositories: noRepositories{}, Metrics: NewMetrics()}
}

// ask returns the status code of an answer, its body and its end.
func ask(ctx context.Context, c *http.Client, host, request, token, question string, q protocol.Query) (status int, body string, end protocol.End, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+protocol.URLPath(request, question)+"?"+q.Encode(), http.NoBody)
	if err != nil {
		return 0, "", end, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := c.Do(r)
	if err != nil {
		return 0, "", end, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode == http.StatusOK {
		end, err = protocol.DecodeEnd(response.Trailer)
	}
	return response.StatusCode, string(text), end, err
}

// world is a namespace with a Controller.
type world struct {
	*testenv.Env
	metrics *Metrics
}

func (w *world) start(cfg Config) (stop func()) {
	cfg.Namespace, cfg.Logger, w.metrics = w.Namespace, w.Logger(), cfg.Metrics
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{w.Namespace: {}}}}
	return w.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error { return SetUp(mgr, cfg) })
}

func (w *world) backup(backup, owner, pod, snapshot string) *velerov1.PodVolumeBackup {
	w.T.Helper()
	pvb := &velerov1.PodVolumeBackup{
		ObjectMeta: w.Meta(backup + "-" + pod),
		Spec:       velerov1.PodVolumeBackupSpec{Pod: corev1.ObjectReference{Namespace: "shop", Name: pod}, Volume: "data", UploaderType: "restic", Node: "n", BackupStorageLocation: "default"},
		Status:     velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: snapshot},
	}
	pvb.Labels = map[string]string{velerov1.BackupNameLabel: backup}
	pvb.OwnerReferences = []metav1.OwnerReference{{APIVersion: "velero.io/v1", Kind: "Backup", Name: owner, UID: "1"}}
	w.Create(pvb)
	return pvb
}

// open creates a FileRequest and waits for its answer.
func (w *world) open(name, token string, spec v1alpha1.FileRequestSpec) *v1alpha1.FileRequest {
	w.T.Helper()
	spec.TokenHash = protocol.HashToken(token)
	r := &v1alpha1.FileRequest{ObjectMeta: w.Meta(name), Spec: spec}
	w.Create(r)
	return testenv.EventuallyGet(w.Env, r, "the answer", func(r *v1alpha1.FileRequest, err error) bool { return err == nil && r.Status.Phase != "" })
}

func (w *world) gone(r *v1alpha1.FileRequest, why string) {
	w.T.Helper()
	testenv.EventuallyGet(w.Env, r, why, func(_ *v1alpha1.FileRequest, err error) bool { return apierrors.IsNotFound(err) })
}

func host(r *v1alpha1.FileRequest) string { return fmt.Sprintf("127.0.0.1:%d", r.Status.Port) }

// TestSessions: who has the token of an open FileRequest is answered, and nobody else.
func TestSessions(t *testing.T) {
	t.Parallel()
	w := &world{Env: testenv.New(t, testenv.Options{})}
	w.Create(&velerov1.Backup{ObjectMeta: w.Meta("nightly"), Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseCompleted}})
	w.Create(&velerov1.Backup{ObjectMeta: w.Meta("running"), Status: velerov1.BackupStatus{Phase: velerov1.BackupPhaseInProgress}})
	first := w.backup("nightly", "nightly", "db-0", "1")
	w.backup("nightly", "nightly-of-another-name", "db-1", "2") // whose label was cut to the same
	cfg := config(&oneFile{content: "content"})
	cfg.MaxOpen = 2
	stop := w.start(cfg)
	a := w.open("a", "secret-a", v1alpha1.FileRequestSpec{Backup: "nightly"})
	b := w.open("b", "secret-b", v1alpha1.FileRequestSpec{})
	if a.Status.Phase != v1alpha1.FileRequestReady || a.Status.Pod != "pod-1" || a.Status.ExpirationTimestamp == nil {
		t.Fatalf("%+v", a.Status)
	}
	if c := w.open("c", "secret-c", v1alpha1.FileRequestSpec{}); c.Status.Reason != v1alpha1.ReasonTooManyFileRequests || c.Status.Port != 0 {
		t.Errorf("a third one: %+v", c.Status)
	}
	for reason, spec := range map[v1alpha1.Reason]v1alpha1.FileRequestSpec{
		v1alpha1.ReasonBackupNotFound: {Backup: "weekly"}, v1alpha1.ReasonPodVolumeBackupNotFound: {PodVolumeBackup: "none"},
		v1alpha1.ReasonNoPodVolumes: {Backup: "nightly", Other: &v1alpha1.FileSelection{Volume: &v1alpha1.PodVolumeSelector{Namespace: "none"}}},
		v1alpha1.ReasonNotReady:     {Backup: "nightly", Other: &v1alpha1.FileSelection{Backup: "running"}},
	} {
		if r := w.open(strings.ToLower(string(reason)), "t", spec); r.Status.Reason != reason {
			t.Errorf("%s: %+v", reason, r.Status)
		}
	}
	if r := w.open("no-volume", "t", v1alpha1.FileRequestSpec{Volume: &v1alpha1.PodVolumeSelector{Namespace: "none"}}); r.Status.Reason != v1alpha1.ReasonNoPodVolumes {
		t.Errorf("no volume: %+v", r.Status)
	}
	for token, want := range map[string]int{"secret-a": 200, "secret-b": 401, "": 401, a.Spec.TokenHash: 401} {
		status, body, end, err := ask(t.Context(), http.DefaultClient, host(a), "a", token, protocol.Volumes, protocol.Query{})
		if err != nil || status != want || (want == 200) != end.Complete || want == 200 && (strings.Count(body, "\n") != 1 || !strings.Contains(body, `"backup":"nightly"`)) {
			t.Errorf("token %q: %d, %+v, %v: %s", token, status, end, err, body)
		}
	}
	_, body, _, err := ask(t.Context(), http.DefaultClient, host(b), "b", "secret-b", protocol.Volumes, protocol.Query{})
	if err != nil || strings.Count(body, "\n") != 2 || !strings.Contains(body, `"backup":"nightly-of-another-name"`) {
		t.Errorf("all volumes: %v: %s", err, body)
	}
	_, _, end, err := ask(t.Context(), http.DefaultClient, host(a), "a", "secret-a", protocol.Entries, protocol.Query{PodVolumeBackup: "nightly-db-1"})
	if err != nil || end.Complete || !strings.Contains(end.Error, "not one of those") {
		t.Errorf("a volume of another backup: %+v, %v", end, err)
	}
	w.Delete(b)
	w.Eventually("the end of the session", func() bool {
		status, _, _, err := ask(t.Context(), http.DefaultClient, host(a), "b", "secret-b", protocol.Volumes, protocol.Query{})
		return err == nil && status == http.StatusUnauthorized
	})
	if err := testutil.CollectAndCompare(w.metrics, strings.NewReader(`# HELP plimsoll_file_requests_total Number of FileRequests that were answered with this phase.
# TYPE plimsoll_file_requests_total counter
plimsoll_file_requests_total{phase="Failed"} 6
plimsoll_file_requests_total{phase="Ready"} 2
`)); err != nil {
		t.Error(err)
	}
	if problems, err := testutil.CollectAndLint(w.metrics); err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}

	stop()
	cfg = config(&oneFile{})
	cfg.Timeout = time.Nanosecond // what is new is too old
	w.start(cfg)
	w.gone(a, "the end of a session whose process has ended")
	old := &v1alpha1.FileRequest{ObjectMeta: w.Meta("old"), Spec: v1alpha1.FileRequestSpec{TokenHash: first.Name}}
	old.Spec.TokenHash = protocol.HashToken("x")
	w.Create(old)
	w.gone(old, "the end of a FileRequest that nobody has answered in time")
}

// pipe is a server of one session, and a client of it, without a network.
func pipe(t *testing.T, cfg Config) (*server, *http.Client) {
	t.Helper()
	cfg.setDefaults()
	s := newServer(&cfg)
	backups := []velerov1.PodVolumeBackup{{ObjectMeta: metav1.ObjectMeta{Name: "pvb"}, Status: velerov1.PodVolumeBackupStatus{Phase: velerov1.PodVolumeBackupPhaseCompleted, SnapshotID: "1"}}}
	if !s.begin(t.Context(), &v1alpha1.FileRequest{ObjectMeta: metav1.ObjectMeta{Name: "r", UID: "1"}, Spec: v1alpha1.FileRequestSpec{TokenHash: protocol.HashToken("t")}}, backups, nil) {
		t.Fatal("no session")
	}
	listener := &pipeListener{connections: make(chan net.Conn), done: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.serve(ctx, listener) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		select {
		case listener.connections <- theirs:
			return ours, nil
		case <-listener.done:
			return nil, net.ErrClosed
		}
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s, &http.Client{Transport: transport}
}

type pipeListener struct {
	connections chan net.Conn
	done        chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.connections:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	return nil
}

func (*pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

var content = protocol.Query{PodVolumeBackup: "pvb", Path: "file"}

// TestContent: each answer says at its end whether it is complete, and a resumed one is hashed from its begin.
func TestContent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &oneFile{content: strings.Repeat("0123456789", 20000)}
		_, client := pipe(t, config(f))
		sum := sha256.Sum256([]byte(f.content))
		for _, offset := range []int64{0, 7, 199999, 200000, 300000} {
			q := content
			q.Offset = offset
			_, body, end, err := ask(t.Context(), client, "pod", "r", "t", protocol.Content, q)
			if err != nil || !end.Complete || end.SHA256 != hex.EncodeToString(sum[:]) || body != f.content[min(offset, 200000):] {
				t.Errorf("from %d: %d bytes, %+v, %v", offset, len(body), end, err)
			}
		}
		for _, offset := range []int64{0, 1024, 300000} { // of the volume itself, which is a directory
			q := protocol.Query{PodVolumeBackup: "pvb", Offset: offset}
			_, body, end, err := ask(t.Context(), client, "pod", "r", "t", protocol.Content, q)
			if err != nil || !end.Complete || end.SHA256 != hex.EncodeToString(sum[:]) || body != f.content[min(offset, 200000):] {
				t.Errorf("an archive from %d: %d bytes, %+v, %v", offset, len(body), end, err)
			}
			if got := leftOut(t, client, q); got != strconv.FormatInt(offset, 10) {
				t.Errorf("an archive from %d says that it is from %q", offset, got)
			}
		}
		f.read = func(_ context.Context, w io.Writer) error {
			_, _ = io.WriteString(w, f.content[:100000])
			return errors.New("the pack\nis damaged")
		}
		_, body, end, err := ask(t.Context(), client, "pod", "r", "t", protocol.Content, content)
		if err != nil || end.Complete || end.SessionEnded || end.SHA256 != "" || end.Error != `the pack\nis damaged` || len(body) != 100000 {
			t.Errorf("damaged: %d bytes, %+v, %v", len(body), end, err)
		}
		_, _, end, err = ask(t.Context(), client, "pod", "r", "t", protocol.Content, protocol.Query{PodVolumeBackup: "pvb", Path: "none"})
		if err != nil || end.Complete || !end.NotFound {
			t.Errorf("no such path: %+v, %v", end, err)
		}
		_, _, end, err = ask(t.Context(), client, "pod", "r", "t", protocol.Entries, protocol.Query{PodVolumeBackup: "pvb", Path: "a/../../etc"})
		if err != nil || end.Complete || !strings.Contains(end.Error, "leads out of the volume") {
			t.Errorf("a path that leads out: %+v, %v", end, err)
		}
		_, body, end, err = ask(t.Context(), client, "pod", "r", "t", protocol.Entries, protocol.Query{PodVolumeBackup: "pvb", Name: "f*"})
		var entry protocol.Entry
		if err := errors.Join(err, json.Unmarshal([]byte(body), &entry)); err != nil || !end.Complete || string(entry.Path) != "file" {
			t.Errorf("entries: %q, %+v, %v", body, end, err)
		}
	})
}

// leftOut returns how much of an archive an answer says that it leaves out.
func leftOut(t *testing.T, client *http.Client, q protocol.Query) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://pod"+protocol.URLPath("r", protocol.Content)+"?"+q.Encode(), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer t")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Error(err)
	}
	return response.Header.Get(protocol.HeaderOffset)
}

// TestPatience: a slow repository does not end an answer, however much is left out of it, and a client that takes nothing does.
func TestPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &oneFile{content: strings.Repeat("x", 1<<20)}
		f.read = func(_ context.Context, w io.Writer) error {
			for i := range 4 {
				<-time.After(time.Hour)
				if _, err := io.WriteString(w, f.content[i<<18:(i+1)<<18]); err != nil {
					return err
				}
			}
			<-time.After(time.Hour)
			return nil
		}
		cfg := config(f)
		cfg.MaxAnswers = 1
		s, client := pipe(t, cfg)
		q := content
		q.Offset = 1<<20 - 1
		if _, body, end, err := ask(t.Context(), client, "pod", "r", "t", protocol.Content, q); err != nil || !end.Complete || body != "x" {
			t.Errorf("a slow repository: %q, %+v, %v", body, end, err)
		}
		ended := make(chan error, 1)
		f.read = func(_ context.Context, w io.Writer) error {
			_, err := io.WriteString(w, f.content)
			ended <- err
			return err
		}
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://pod"+protocol.URLPath("r", protocol.Content)+"?"+content.Encode(), http.NoBody)
		request.Header.Set("Authorization", "Bearer t")
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "does not take the answer") {
			t.Errorf("a client that takes nothing: %v", err)
		}
		synctest.Wait()
		if len(s.workers) != 0 {
			t.Error("it keeps a worker")
		}
		if _, err := io.ReadAll(response.Body); err == nil {
			t.Error("an answer that was cut off looks whole")
		}
		_ = response.Body.Close()

		// A session that ends ends its answers, also those that wait for a worker; one that expires lets the last one end.
		f.read = func(ctx context.Context, _ io.Writer) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		type answered struct {
			end protocol.End
			err error
		}
		ends := make(chan answered, 2)
		for range 2 {
			go func() {
				_, _, end, err := ask(t.Context(), client, "pod", "r", "t", protocol.Content, content)
				ends <- answered{end, err}
			}()
		}
		synctest.Wait()
		if s.retire("r") {
			t.Error("retired with two answers")
		}
		if status, _, _, err := ask(t.Context(), client, "pod", "r", "t", protocol.Content, content); status != http.StatusUnauthorized {
			t.Errorf("a question after the expiry: %d, %v", status, err)
		}
		s.end("r", "")
		for range 2 {
			if a := <-ends; a.err != nil || a.end.Complete || !a.end.SessionEnded || !strings.Contains(a.end.Error, errEnded.Error()) {
				t.Errorf("got %+v, %v", a.end, a.err)
			}
		}
	})
}
