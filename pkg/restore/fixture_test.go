package restore

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/pkg/apiretry"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// archived is one file of a backup's archive.
type archived struct{ path, content string }

// of is an item of a resource, from a manifest.
func of(resource, manifest string) archived {
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &object.Object); err != nil {
		panic(fmt.Sprintf("manifest: %v\n%s", err, manifest))
	}
	content, err := json.Marshal(object.Object)
	if err != nil {
		panic(err)
	}
	scope := "cluster/"
	if object.GetNamespace() != "" {
		scope = "namespaces/" + object.GetNamespace() + "/"
	}
	return archived{"resources/" + resource + "/" + scope + object.GetName() + ".json", string(content)}
}

func configMap(namespace, name, value string) archived {
	return of("configmaps", fmt.Sprintf(`{apiVersion: v1, kind: ConfigMap, metadata: {namespace: %s, name: %s, labels: {app: %s},
		uid: 7c1f, resourceVersion: "17", creationTimestamp: "2024-01-01T00:00:00Z",
		managedFields: [{manager: kubectl, operation: Update, apiVersion: v1, fieldsType: FieldsV1, fieldsV1: {"f:data": {}}}]},
		data: {key: %q}}`, namespace, name, name, value))
}

func archive(tb testing.TB, files ...archived) *backupstore.Archive {
	tb.Helper()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	w := tar.NewWriter(zip)
	for _, file := range append([]archived{{"metadata/version", "1.1.0\n"}}, files...) {
		if err := w.WriteHeader(&tar.Header{Name: file.path, Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(file.content))}); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write([]byte(file.content)); err != nil {
			tb.Fatal(err)
		}
	}
	for _, closer := range []interface{ Close() error }{w, zip} {
		if err := closer.Close(); err != nil {
			tb.Fatal(err)
		}
	}
	a, err := backupstore.OpenArchive(tb.Context(), "archive", &packed, backupstore.ArchiveOptions{Dir: tb.TempDir()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { a.Close() })
	return a
}

// attempt is a restore by a test.
type attempt struct {
	tb      testing.TB
	config  Config
	input   Input
	cluster dynamic.Interface
	id      string // for names that no other test has; never a number, which would be none in a manifest

	mu      sync.Mutex
	reports []Progress
}

func newAttempt(tb testing.TB) *attempt {
	tb.Helper()
	a := &attempt{tb: tb, id: "t" + rand.String(5)}
	a.connect(testenv.New(tb, testenv.Options{}).Config) // shared: tests use names of their own
	a.input = Input{
		Restore: &velerov1.Restore{ObjectMeta: metav1.ObjectMeta{Namespace: "plimsoll", Name: "r-" + a.id, UID: "restore-uid"}},
		Backup:  &velerov1.Backup{ObjectMeta: metav1.ObjectMeta{Namespace: "plimsoll", Name: "b1"}},
		Log:     slog.New(slog.NewTextHandler(tb.Output(), nil)),
	}
	a.input.Restore.Spec.BackupName = "b1"
	return a
}

// connect chooses the API server. There is no limit on what clients send.
func (a *attempt) connect(config *rest.Config) {
	a.tb.Helper()
	config.QPS, config.Burst = -1, -1
	a.config.REST = config
	var err error
	if a.cluster, err = dynamic.NewForConfig(config); err != nil {
		a.tb.Fatal(err)
	}
}

// copy is another attempt with the same names.
func (a *attempt) copy() *attempt {
	b := newAttempt(a.tb)
	b.id = a.id
	return b
}

// backup says what is in the backup.
func (a *attempt) backup(files ...archived) { a.input.Archive = archive(a.tb, files...) }

func (a *attempt) engine() *Engine {
	a.tb.Helper()
	e, err := New(a.config)
	if err != nil {
		a.tb.Fatal(err)
	}
	return e
}

func (a *attempt) collect(e *Engine) *run {
	a.tb.Helper()
	r, err := e.Collect(a.tb.Context(), a.input)
	if err != nil {
		a.tb.Fatal(err)
	}
	return r.(*run)
}

// run restores to the end, and checks what is always true.
func (a *attempt) run() *Outcome {
	a.tb.Helper()
	e := a.engine()
	outcome, err := a.collect(e).RestoreItems(a.tb.Context(), a.report)
	if err != nil {
		a.tb.Fatal(err)
	}
	p := outcome.Progress
	if p.Restored+p.Skipped != p.Total {
		a.tb.Errorf("the restore has ended at %+v", p)
	}
	return outcome
}

// report checks each report.
func (a *attempt) report(p Progress) {
	if !a.mu.TryLock() {
		a.tb.Error("two reports at the same time")
		return
	}
	defer a.mu.Unlock()
	c := p.Counts
	if sum := c.Created + c.Updated + c.Unchanged + c.Skipped + c.Failed; sum != p.Restored {
		a.tb.Errorf("%+v has %d items, want %d", c, sum, p.Restored)
	}
	if p.Total > 0 && p.Restored+p.Skipped > p.Total || p.Total == 0 && !p.Estimate {
		a.tb.Errorf("restored %d and skipped %d of %d", p.Restored, p.Skipped, p.Total)
	}
	if n := len(a.reports); n > 0 {
		before := a.reports[n-1]
		if p.Restored < before.Restored || p.Restored+p.Skipped < before.Restored+before.Skipped {
			a.tb.Errorf("what was looked at falls from %+v to %+v", before, p)
		}
	}
	a.reports = append(a.reports, p)
}

func (a *attempt) resource(resource string) dynamic.NamespaceableResourceInterface {
	parsed, _ := schema.ParseResourceArg(resource)
	if parsed == nil {
		parsed = &schema.GroupVersionResource{Version: "v1", Resource: resource}
	}
	return a.cluster.Resource(*parsed)
}

// get returns an object, nil if there is none. The resource is as in "configmaps" or "widgets.v1.example.com".
func (a *attempt) get(resource, namespace, name string) *unstructured.Unstructured {
	a.tb.Helper()
	object, err := a.resource(resource).Namespace(namespace).Get(a.tb.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		a.tb.Fatal(err)
	}
	return object
}

// create makes an object from a manifest.
func (a *attempt) create(resource, manifest string) *unstructured.Unstructured {
	a.tb.Helper()
	object := &unstructured.Unstructured{Object: decodeManifest(a.tb, manifest)}
	object, err := a.resource(resource).Namespace(object.GetNamespace()).Create(a.tb.Context(), object, metav1.CreateOptions{})
	if err != nil {
		a.tb.Fatal(err)
	}
	return object
}

func decodeManifest(tb testing.TB, manifest string) (object map[string]any) {
	tb.Helper()
	if err := yaml.Unmarshal([]byte(manifest), &object); err != nil {
		tb.Fatal(err)
	}
	return object
}

func (a *attempt) createNamespace(name string) {
	a.tb.Helper()
	a.create("namespaces", `{apiVersion: v1, kind: Namespace, metadata: {name: `+name+`}}`)
}

// deleteAtEnd lets go of something whose name the test cannot choose, so that the test can run again.
func (a *attempt) deleteAtEnd(resource, name string) {
	a.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.tb.Context()), 3*time.Minute)
		defer cancel()
		err := a.resource(resource).Delete(ctx, name, metav1.DeleteOptions{})
		for err == nil {
			if _, err = a.resource(resource).Get(ctx, name, metav1.GetOptions{}); err == nil {
				err = apiretry.Sleep(ctx, pollInterval)
			}
		}
		if !apierrors.IsNotFound(err) {
			a.tb.Error(err)
		}
	})
}

// resultsText returns what all results say, one per line, for looking into it.
func resultsText(o *Outcome) string {
	var lines []string
	for _, r := range []struct {
		level   string
		results map[string][]string
	}{
		{"error", o.Results.Errors.Namespaces},
		{"warning", o.Results.Warnings.Namespaces},
		{"error", map[string][]string{"": o.Results.Errors.Cluster}},
		{"warning", map[string][]string{"": o.Results.Warnings.Cluster}},
		{"error", map[string][]string{"velero": o.Results.Errors.Velero}},
		{"warning", map[string][]string{"velero": o.Results.Warnings.Velero}},
	} {
		for place, texts := range r.results {
			for _, text := range texts {
				lines = append(lines, r.level+" "+place+": "+text)
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
