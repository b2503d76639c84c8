package restore

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// decodeItem reads an object from YAML as the archive does from JSON.
func decodeItem(tb testing.TB, text string) *unstructured.Unstructured {
	tb.Helper()
	data, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		tb.Fatalf("%v in:\n%s", err, text)
	}
	object := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(data, &object.Object); err != nil {
		tb.Fatal(err)
	}
	return object
}

// archiveOf is the archive of a backup in a version of the format that holds objects, given as YAML by their path, such as
// "pods/namespaces/shop/web".
func archiveOf(tb testing.TB, version string, objects map[string]string) *backupstore.Archive {
	tb.Helper()
	files := []archived{{"metadata/version", version + "\n"}}
	for path, text := range objects {
		data, err := json.Marshal(decodeItem(tb, text))
		if err != nil {
			tb.Fatal(err)
		}
		files = append(files, archived{"resources/" + path + ".json", string(data)})
	}
	return archive(tb, files...)
}

// bare answers as an API server that serves no resource at all.
type bare struct{}

func (bare) RoundTrip(request *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusNotFound, Header: http.Header{"Content-Type": {"application/json"}}, Request: request,
		Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)),
	}, nil
}

func bareCluster(tb testing.TB) dynamic.Interface {
	tb.Helper()
	client, err := dynamic.NewForConfig(&rest.Config{Host: "http://bare.test", Transport: bare{}, QPS: -1})
	if err != nil {
		tb.Fatal(err)
	}
	return client
}

// scopeWith is a restore of backup "nightly" into a cluster.
func scopeWith(cluster dynamic.Interface, input Input) *scope {
	if input.Restore == nil {
		input.Restore = &velerov1.Restore{}
	}
	input.Restore.Namespace, input.Restore.Name = "velero", "back"
	if input.Restore.UID == "" {
		input.Restore.UID = "11111111-2222-3333-4444-555555555555"
	}
	input.Backup = &velerov1.Backup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "nightly"}, Spec: velerov1.BackupSpec{StorageLocation: "default"},
	}
	input.Log = slog.New(slog.DiscardHandler)
	return newScope(&Engine{cluster: cluster, config: Config{HelperImage: "example.test/node-agent:1", ResourceTimeout: time.Minute}}, input)
}

// prepareItem lets all actions for a resource run on an object of the backup, one after the other, as the engine does.
func prepareItem(tb testing.TB, s *scope, resource string, original *unstructured.Unstructured) (*unstructured.Unstructured, actionOutput, error) {
	tb.Helper()
	item := original.DeepCopy()
	reset(item)
	var all actionOutput
	before := original.DeepCopy()
	for _, action := range actions {
		if !slices.Contains(action.resources, resource) {
			continue
		}
		in := &actionInput{resource: schema.ParseGroupResource(resource), item: item, original: original}
		out, err := action.apply(tb.Context(), s, in)
		if diff := cmp.Diff(before.Object, original.Object); diff != "" {
			tb.Fatalf("%s changes the backup's object:\n%s", action.name, diff)
		}
		all.additional = append(all.additional, out.additional...)
		all.warnings = append(all.warnings, out.warnings...)
		all.errors = append(all.errors, out.errors...)
		if out.unfilled != nil {
			all.unfilled = out.unfilled
		}
		if err != nil {
			return item, all, fmt.Errorf("%s: %w", action.name, err)
		}
		if out.skip != "" {
			all.skip = out.skip
			return item, all, nil
		}
	}
	return item, all, nil
}

// expectation is what comes of an item: fields that are not here are not looked at.
type expectation struct {
	item       string   // as YAML; empty: not looked at
	skip       string   // part of it
	additional []string // such as "persistentvolumeclaims shop/data"
	warnings   []string // parts of them, one for each
	errors     []string // as warnings, of an item that is restored all the same
	err        string   // part of it
	unfilled   volumeinfo.Outcome
}

func (e expectation) check(tb testing.TB, item *unstructured.Unstructured, out actionOutput, err error) {
	tb.Helper()
	if (err != nil) != (e.err != "") || err != nil && !strings.Contains(err.Error(), e.err) {
		tb.Fatalf("error: got %v, want %q", err, e.err)
	}
	if (out.skip != "") != (e.skip != "") || !strings.Contains(out.skip, e.skip) {
		tb.Errorf("skip: got %q, want %q", out.skip, e.skip)
	}
	var additional []string
	for _, k := range out.additional {
		additional = append(additional, fmt.Sprintf("%s %s/%s", k.resource, k.namespace, k.name))
	}
	if diff := cmp.Diff(e.additional, additional); diff != "" {
		tb.Errorf("additional items (-want +got):\n%s", diff)
	}
	if len(out.warnings) != len(e.warnings) {
		tb.Fatalf("warnings: got %q, want %q", out.warnings, e.warnings)
	}
	var unfilled volumeinfo.Outcome
	if out.unfilled != nil {
		unfilled = out.unfilled.Outcome
	}
	if unfilled != e.unfilled {
		tb.Errorf("unfilled: got %q, want %q", unfilled, e.unfilled)
	}
	if len(out.errors) != len(e.errors) {
		tb.Fatalf("errors: got %q, want %q", out.errors, e.errors)
	}
	for i, part := range e.errors {
		if !strings.Contains(out.errors[i], part) {
			tb.Errorf("error %d: got %q, want %q", i, out.errors[i], part)
		}
	}
	for i, part := range e.warnings {
		if !strings.Contains(out.warnings[i], part) {
			tb.Errorf("warning %d: got %q, want %q", i, out.warnings[i], part)
		}
	}
	if e.item == "" {
		return
	}
	if diff := cmp.Diff(decodeItem(tb, e.item).Object, item.Object); diff != "" {
		tb.Errorf("item (-want +got):\n%s", diff)
	}
}

// podVolumeBackup is the record of a volume of pod shop/web.
func podVolumeBackup(volume, claim, snapshot string) velerov1.PodVolumeBackup {
	pvb := velerov1.PodVolumeBackup{}
	pvb.Name = "nightly-" + volume
	if claim != "" {
		pvb.Annotations = map[string]string{"velero.io/pvc-name": claim}
	}
	pvb.Spec.Pod = corev1.ObjectReference{Namespace: "shop", Name: "web"}
	pvb.Spec.Volume, pvb.Spec.UploaderType = volume, "kopia"
	pvb.Status.Phase, pvb.Status.SnapshotID = velerov1.PodVolumeBackupPhaseCompleted, snapshot
	pvb.Status.Progress.TotalBytes = 4096
	return pvb
}
