package pluginendpoint

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
)

// kind is one of the two kinds of objects.
type kind struct {
	resource string
	idField  string // of a report, what the plugin returns to Velero
	object   func() client.Object
	begin    func(call, Config) (begun, error)
}

// begun is an object and the id with which the plugin has asked for it, empty if it knows none yet.
type begun struct {
	object client.Object
	id     string
}

var (
	backups = kind{
		resource: "volumepluginbackups", idField: "snapshotID", begin: beginBackup,
		object: func() client.Object { return &v1alpha1.VolumePluginBackup{} },
	}
	restores = kind{
		resource: "volumepluginrestores", idField: "volumeID", begin: beginRestore,
		object: func() client.Object { return &v1alpha1.VolumePluginRestore{} },
	}
)

// backupBegins is the body with which a backup begins. Its fields are those of the object.
type backupBegins struct {
	Plugin         string            `json:"plugin"`
	Backup         string            `json:"backup"`
	Volume         string            `json:"volume"`
	SnapshotID     string            `json:"snapshotID"`
	PluginSpecific map[string]string `json:"pluginSpecific"`
}

func beginBackup(c call, cfg Config) (begun, error) {
	var b backupBegins
	if err := decode(c.Request, &b); err != nil {
		return begun{}, err
	}
	if b.Plugin == "" || b.Backup == "" || b.Volume == "" {
		return begun{}, problemf(http.StatusBadRequest, "plugin, backup and volume must be set")
	}
	if err := checkIDs(b.SnapshotID); err != nil {
		return begun{}, err
	}
	object, err := newRecorder(c.Context(), cfg, b.Plugin).OpenBackup(c.Context(), volumeplugin.BackupRequest{
		Backup: b.Backup, Volume: b.Volume, SnapshotID: b.SnapshotID, PluginSpecific: b.PluginSpecific,
	})
	return begun{object, b.SnapshotID}, err
}

// restoreBegins is the body with which a restore begins.
type restoreBegins struct {
	Plugin         string            `json:"plugin"`
	SnapshotID     string            `json:"snapshotID"`
	VolumeID       string            `json:"volumeID"`
	Backup         string            `json:"backup"`
	PluginSpecific map[string]string `json:"pluginSpecific"`
}

func beginRestore(c call, cfg Config) (begun, error) {
	var b restoreBegins
	if err := decode(c.Request, &b); err != nil {
		return begun{}, err
	}
	if b.Plugin == "" || b.SnapshotID == "" {
		return begun{}, problemf(http.StatusBadRequest, "plugin and snapshotID must be set")
	}
	if err := checkIDs(b.SnapshotID, b.VolumeID); err != nil {
		return begun{}, err
	}
	object, err := newRecorder(c.Context(), cfg, b.Plugin).OpenRestore(c.Context(), volumeplugin.RestoreRequest{
		SnapshotID: b.SnapshotID, VolumeID: b.VolumeID, Backup: b.Backup, PluginSpecific: b.PluginSpecific,
	})
	return begun{object, b.VolumeID}, err
}

// maxID is what a Recorder takes, in bytes: it shortens longer ids, and a snapshot is not found by half its id.
const maxID = 2048

func checkIDs(ids ...string) error {
	for _, id := range ids {
		if len(id) > maxID {
			return problemf(http.StatusBadRequest, "an id has at most %d bytes, this one has %d", maxID, len(id))
		}
	}
	return nil
}

// report is the body of a PATCH. What is absent has not changed.
type report struct {
	BytesDone  *int64         `json:"bytesDone"`
	TotalBytes *int64         `json:"totalBytes"`
	SnapshotID string         `json:"snapshotID"` // of backups
	VolumeID   string         `json:"volumeID"`   // of restores
	Phase      v1alpha1.Phase `json:"phase"`      // empty, InProgress, Completed or Failed
	Message    string         `json:"message"`    // with Failed
}

// id is what the plugin returns to Velero.
func (r report) id() string { return r.SnapshotID + r.VolumeID }

func (r report) validate(k kind) error {
	negative := func(n *int64) bool { return n != nil && *n < 0 }
	refuse := func(format string, args ...any) error { return problemf(http.StatusBadRequest, format, args...) }
	switch {
	case r.SnapshotID != "" && k.idField != "snapshotID", r.VolumeID != "" && k.idField != "volumeID":
		return refuse("the id that a report of %s can tell is %s", k.resource, k.idField)
	case negative(r.BytesDone), negative(r.TotalBytes):
		return refuse("bytesDone and totalBytes must not be negative")
	case r.BytesDone != nil && r.TotalBytes != nil && *r.TotalBytes > 0 && *r.BytesDone > *r.TotalBytes:
		return refuse("bytesDone %d is more than totalBytes %d", *r.BytesDone, *r.TotalBytes)
	case r.Phase != "" && r.Phase != v1alpha1.PhaseInProgress && !r.Phase.Terminal():
		return refuse("phase %q is none of InProgress, Completed and Failed", r.Phase)
	case r.Message != "" && r.Phase != v1alpha1.PhaseFailed:
		return refuse("a message goes with phase Failed only")
	case r == report{}:
		return refuse("it reports nothing")
	default:
		return checkIDs(r.id())
	}
}

// check says whether an object became what was reported.
func (r report) check(object client.Object) error {
	is := statusOf(object).Phase
	switch {
	case r.id() != "" && r.id() != idOf(object) && is.Terminal():
		return problemf(http.StatusConflict, "%q has ended as %s with id %q before: nothing more is recorded", object.GetName(), is, idOf(object))
	case r.id() != "" && r.id() != idOf(object):
		return notWritten(r.id(), object)
	case is == r.Phase || r.Phase == "" && !is.Terminal() || r.Phase == v1alpha1.PhaseInProgress && !is.Terminal():
		return nil
	case is.Terminal():
		return problemf(http.StatusConflict, "%q has ended as %s before: nothing more is recorded", object.GetName(), is)
	default:
		return notWritten("phase "+string(r.Phase), object)
	}
}

func notWritten(what string, object client.Object) error {
	return problemf(http.StatusServiceUnavailable, "%s of %q is not written yet: try again", what, object.GetName())
}

// decode reads a body of JSON, with the fields of value and no others.
func decode(r *http.Request, value any) error {
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		return problemf(http.StatusUnsupportedMediaType, "the Content-Type must be application/json")
	}
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	err := decoder.Decode(value)
	if err == nil {
		if _, err = decoder.Token(); errors.Is(err, io.EOF) {
			return nil
		} else if err == nil {
			err = errors.New("something follows it")
		}
	}
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return problemf(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	}
	return problemf(http.StatusBadRequest, "the body is not the JSON that it should be: %v", err)
}

// statusOf is what backups and restores have in common.
func statusOf(object client.Object) *v1alpha1.VolumeOperationStatus {
	switch o := object.(type) {
	case *v1alpha1.VolumePluginBackup:
		return &o.Status.VolumeOperationStatus
	case *v1alpha1.VolumePluginRestore:
		return &o.Status.VolumeOperationStatus
	default:
		return nil
	}
}

func wholeStatus(object client.Object) any {
	switch o := object.(type) {
	case *v1alpha1.VolumePluginBackup:
		return o.Status
	case *v1alpha1.VolumePluginRestore:
		return o.Status
	default:
		return nil
	}
}

// idOf is what the plugin returns to Velero.
func idOf(object client.Object) string {
	switch o := object.(type) {
	case *v1alpha1.VolumePluginBackup:
		return o.Status.SnapshotID
	case *v1alpha1.VolumePluginRestore:
		return o.Status.VolumeID
	default:
		return ""
	}
}

func pluginOf(object client.Object) string {
	switch o := object.(type) {
	case *v1alpha1.VolumePluginBackup:
		return o.Spec.Plugin
	case *v1alpha1.VolumePluginRestore:
		return o.Spec.Plugin
	default:
		return ""
	}
}
