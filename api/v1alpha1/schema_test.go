package v1alpha1

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

var written = time.Date(2026, 11, 23, 4, 0, 0, 123456789, time.UTC)

// document is one of the documents with every field set, and with none.
type document struct {
	full, empty any
	newer       string // of a later version: a field, a state or step and a reason that this one does not know
}

func documents() map[string]document {
	volume := VolumeProgress{
		State: StateStalled, Reason: ReasonFinishStalled, Message: "all data is read", BytesDone: 10, TotalBytes: 20, TotalFinal: true, SnapshotBytes: new(int64(15)),
		BytesPerSecond: 1, ETASeconds: new(int64(10)), FilesDone: 1, FilesTotal: 2, BytesUploaded: 5, Errors: 1, Vanished: 1, LastError: "open a: permission denied",
		CurrentItem: "b", StartTime: written, LastProgressTime: written, LastWorkTime: written, Heartbeat: written, Attempt: 2, Uncounted: true, Resumes: 1, QueuePosition: 3,
	}
	return map[string]document{
		"volume": {full: volume, empty: VolumeProgress{State: StateQueued}, newer: `{"state":"Verifying","reason":"OfLater","bytesDone":1,"totalBytes":2,"bytesPerSecond":0,"later":{"a":[1]}}`},
		"agent": {
			full: AgentProgress{Node: "node-a", Operations: []AgentOperation{{
				Kind: "backup", Name: "nightly-x", UID: "u", PodNamespace: "shop", Pod: "web-0", Volume: "data", Uploader: "kopia", Deadline: &written, Progress: volume,
			}}},
			empty: AgentProgress{Operations: []AgentOperation{}}, newer: `{"node":"n","later":1,"operations":[]}`,
		},
		"self-check": {
			full: SelfCheck{
				Node: "node-a", Versions: AgentVersions{Agent: "v0.1.0", Commit: "abc", Restic: "0.18.1", Kopia: "v0.23.1"}, StartTime: written, Landlock: 7, MetadataGuard: true,
				HostPods: HostPodsCheck{Readable: true, RunningPods: 12, FoundPods: 12, Propagation: "slave"}, ClockAheadSeconds: new(int64(-1)), LastScrape: &written,
				Locations: []LocationCheck{{
					Location: "default", Uploader: "kopia", Repository: "shop", Outcome: LocationFailed, Reason: ReasonDataPath, Cause: "connection refused",
					Message: "dial tcp 192.0.2.1:9000: connect: connection refused",
				}},
			},
			empty: SelfCheck{Locations: []LocationCheck{}},
			newer: `{"node":"n","later":1,"versions":{"agent":"v2"},"startTime":"2026-11-23T04:00:00Z","landlock":9,"metadataGuard":true,"hostPods":{"readable":true,"runningPods":1,"foundPods":1},"locations":[{"location":"l","outcome":"OfLater"}]}`,
		},
		"doctor": {
			full: Diagnosis{At: written, Namespace: "velero", Result: SeverityError, Findings: []Finding{{
				Check: "agents", Severity: SeverityError, Reason: "NodeWithoutAgent", Message: "no node agent runs on a node with 3 volumes to back up", Remedy: "let the DaemonSet run there",
				Nodes: []string{"node-c"},
			}}},
			empty: Diagnosis{Result: SeverityOK, Findings: []Finding{}},
			newer: `{"at":"2026-11-23T04:00:00Z","namespace":"n","result":"ok","later":1,"findings":[{"check":"other","severity":"ok","reason":"OK","message":"m"}]}`,
		},
		"restore": {
			full: RestoreProgress{
				Step: StepRestoring, Percent: 50, DryRun: true, Message: "m", Errors: 1, Warnings: 2, Hooks: &RestoreHooks{Attempted: 2, Ended: 1, Failed: 1},
				Items:   RestoreItems{Total: 10, Restored: 5, Current: "pods shop/web", Skipped: 1, Estimate: true, Counts: ItemCounts{Created: 1, Updated: 1, Unchanged: 1, Skipped: 1, Failed: 1}},
				Volumes: &RestoreVolumes{BytesDone: 1, TotalBytes: 2, Phases: map[string]int{"InProgress": 1}},
			},
			empty: RestoreProgress{Step: StepRestoring}, newer: `{"step":"Verifying","later":true,"items":{"totalItems":1,"itemsRestored":1,"counts":{"created":1,"updated":0,"unchanged":0,"skipped":0,"failed":0,"merged":1}}}`,
		},
	}
}

// TestDocuments holds each document to its schema and to its example, and a reader to what a later writer may write.
func TestDocuments(t *testing.T) {
	t.Parallel()
	for name, doc := range documents() {
		schema := readSchema(t, name)
		full, empty := encode(t, doc.full), encode(t, doc.empty)
		for _, text := range [][]byte{full, empty, []byte(doc.newer)} {
			if problems := validateDocument(t, schema, text); problems != nil {
				t.Errorf("%s: %v: %s", name, problems, text)
			}
		}
		if problems := validateDocument(t, schema, []byte(`{}`)); problems == nil {
			t.Errorf("%s: the schema takes a document without its required fields", name)
		}
		checkProperties(t, name, schema, full)
		checkExample(t, name, full)

		decoded := reflect.New(reflect.TypeOf(doc.full))
		if err := json.Unmarshal(full, decoded.Interface()); err != nil || !reflect.DeepEqual(decoded.Elem().Interface(), doc.full) {
			t.Errorf("%s: read as %+v, %v", name, decoded.Elem().Interface(), err)
		}
		later := reflect.New(reflect.TypeOf(doc.full))
		if err := json.Unmarshal([]byte(doc.newer), later.Interface()); err != nil {
			t.Errorf("%s: a later writer's document: %v", name, err)
		}
		// A writer owns its document: what it writes after a later version replaces that version's fields.
		if again := encode(t, later.Elem().Interface()); bytes.Contains(again, []byte("later")) || validateDocument(t, schema, again) != nil {
			t.Errorf("%s: written again as %s", name, again)
		}
	}
	if State("Verifying").Terminal() {
		t.Error("a state of a later version is terminal")
	}
}

func encode(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func readSchema(t *testing.T, name string) *spec.Schema {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("schema", name+".v1.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema spec.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	return &schema
}

func validateDocument(t *testing.T, schema *spec.Schema, text []byte) []error {
	t.Helper()
	var value any
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	return validate.NewSchemaValidator(schema, nil, "", strfmt.Default).Validate(value).Errors
}

// checkProperties compares the fields of a document that has all of them with the properties of its schema.
func checkProperties(t *testing.T, path string, schema *spec.Schema, text []byte) {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	var names, properties []string
	for name := range fields {
		names = append(names, name)
	}
	for name, property := range schema.Properties {
		properties = append(properties, name)
		value := fields[name]
		if property.Items != nil {
			property, value = *property.Items.Schema, bytes.Trim(value, "[]")
		}
		if len(property.Properties) > 0 && value != nil {
			checkProperties(t, path+"."+name, &property, value)
		}
	}
	slices.Sort(names)
	slices.Sort(properties)
	if !slices.Equal(names, properties) {
		t.Errorf("%s has fields\n%s,\nits schema\n%s", path, strings.Join(names, " "), strings.Join(properties, " "))
	}
}

func checkExample(t *testing.T, name string, text []byte) {
	t.Helper()
	var got bytes.Buffer
	if err := json.Indent(&got, text, "", "  "); err != nil {
		t.Fatal(err)
	}
	got.WriteByte('\n')
	file := filepath.Join("schema", name+".v1.json")
	if *update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%s differs (%v); a changed or missing field breaks readers of version 1, a new one is written by go test ./api/v1alpha1 -update:\n%s", file, err, got.String())
	}
}
