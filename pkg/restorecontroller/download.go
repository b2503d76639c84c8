package restorecontroller

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/backupstore"
)

const (
	// downloadTTL is how long a DownloadRequest and its URL live, as in Velero.
	downloadTTL = 10 * time.Minute
	// downloadRetry is the pause after a failure. The CLI waits for a minute.
	downloadRetry = 10 * time.Second
)

// reconcileDownload puts a URL into a new DownloadRequest and deletes it when that has expired.
func (c *Controller) reconcileDownload(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var request velerov1.DownloadRequest
	if err := c.client.Get(ctx, req.NamespacedName, &request); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if expiration := request.Status.Expiration; expiration != nil {
		left := time.Until(expiration.Time)
		if left <= 0 {
			err := c.client.Delete(ctx, &request, client.Preconditions{UID: &request.UID})
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if request.Status.Phase == velerov1.DownloadRequestPhaseProcessed {
			return after(left), nil
		}
	}
	before := client.MergeFrom(request.DeepCopy())
	url, problem := c.downloadURL(ctx, request.Spec.Target)
	if problem == nil {
		request.Status.DownloadURL, request.Status.Phase = url, velerov1.DownloadRequestPhaseProcessed
		request.Status.Expiration = new(metav1.NewTime(time.Now().Add(downloadTTL)))
	} else if request.Status.Expiration == nil { // a request that never succeeds goes, too
		request.Status.Expiration = new(metav1.NewTime(time.Now().Add(downloadTTL)))
	}
	if err := c.client.Patch(ctx, &request, before); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if problem != nil {
		c.cfg.Logger.Warn("Download cannot be offered; retrying", "kind", string(request.Spec.Target.Kind), "name", request.Spec.Target.Name, "error", problem)
		return after(downloadRetry), nil
	}
	return after(downloadTTL), nil
}

// downloadURL is the storage's own URL, or one of this controller's where the storage gives none, or the cluster keeps the file.
func (c *Controller) downloadURL(ctx context.Context, target velerov1.DownloadTarget) (url string, err error) {
	if isOfRestore(target.Kind) {
		var restore velerov1.Restore
		if err := c.client.Get(ctx, c.name(target.Name), &restore); err != nil {
			return "", fmt.Errorf("get the restore %q: %w", target.Name, err)
		}
		kept, err := c.loadFromCluster(ctx, restore.UID, target.Kind)
		if err != nil {
			return "", err
		}
		if kept != nil {
			return c.cfg.DownloadURLBase + c.downloads.offer(offer{target: target, keptFor: restore.UID}), nil
		}
	}
	location, err := c.locationOf(ctx, target)
	if err != nil {
		return "", err
	}
	store, err := c.openStore(ctx, location)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	url, err = store.DownloadURL(ctx, target, downloadTTL)
	if errors.Is(err, backupstore.ErrNoURL) {
		return c.cfg.DownloadURLBase + c.downloads.offer(offer{target: target, location: location.Name}), nil
	}
	return url, err
}

// locationOf finds the location that holds the file.
func (c *Controller) locationOf(ctx context.Context, target velerov1.DownloadTarget) (*velerov1.BackupStorageLocation, error) {
	name := target.Name
	if isOfRestore(target.Kind) {
		var restore velerov1.Restore
		if err := c.client.Get(ctx, c.name(name), &restore); err != nil {
			return nil, fmt.Errorf("get the restore %q: %w", name, err)
		}
		return c.locationOfRestore(ctx, &restore)
	}
	return c.locationOfBackup(ctx, name)
}

func (c *Controller) locationOfBackup(ctx context.Context, name string) (*velerov1.BackupStorageLocation, error) {
	var backup velerov1.Backup
	if err := c.client.Get(ctx, c.name(name), &backup); err != nil {
		return nil, fmt.Errorf("get the backup %q: %w", name, err)
	}
	return c.location(ctx, backup.Spec.StorageLocation)
}

func (c *Controller) locationOfRestore(ctx context.Context, restore *velerov1.Restore) (*velerov1.BackupStorageLocation, error) {
	if name, ok := restore.Annotations[v1alpha1.AnnotationStorageLocation]; ok {
		return c.location(ctx, name)
	}
	return c.locationOfBackup(ctx, restore.Spec.BackupName)
}

func isOfRestore(kind velerov1.DownloadTargetKind) bool {
	switch kind {
	case velerov1.DownloadTargetKindRestoreLog, velerov1.DownloadTargetKindRestoreResults, velerov1.DownloadTargetKindRestoreResourceList,
		velerov1.DownloadTargetKindRestoreItemOperations, velerov1.DownloadTargetKindRestoreVolumeInfo:
		return true
	default:
		return false
	}
}

// downloads are the files that this controller serves itself, by the token in their URL's path. Who has the token has the
// file, once: as with a signed URL there is nothing else to show. It is safe for concurrent use.
type downloads struct {
	mu     sync.Mutex
	offers map[string]offer
}

type offer struct {
	target   velerov1.DownloadTarget
	location string    // that has the file
	keptFor  types.UID // of the Restore, if the cluster keeps the file
	expires  time.Time
}

// DownloadPath is where a Controller serves downloads.
const DownloadPath = "/download/"

// offer returns the path of a file.
func (d *downloads) offer(o offer) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for token, earlier := range d.offers {
		if now.After(earlier.expires) {
			delete(d.offers, token)
		}
	}
	token := rand.Text()
	o.expires = now.Add(downloadTTL)
	d.offers[token] = o
	return DownloadPath + token
}

// take returns what a token stands for, and forgets it.
func (d *downloads) take(token string) (offer, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	o, ok := d.offers[token]
	delete(d.offers, token)
	return o, ok && time.Now().Before(o.expires)
}

// ServeHTTP serves what DownloadRequests ask for, below DownloadPath, packed as it is stored, which is what the velero CLI
// expects.
func (c *Controller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, ok := strings.CutPrefix(r.URL.Path, DownloadPath)
	if !ok {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet { // a token is good for one answer, and that should not be one without a body
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "only GET", http.StatusMethodNotAllowed)
		return
	}
	o, ok := c.downloads.take(token)
	if !ok {
		http.Error(w, "no such download: it has expired, was fetched before, or the controller was restarted; ask again", http.StatusNotFound)
		return
	}
	log := c.cfg.Logger.With("kind", string(o.target.Kind), "name", o.target.Name)
	err := c.serve(w, r, o)
	switch {
	case errors.Is(err, backupstore.ErrNotFound):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		log.Warn("Download failed", "error", err)
		http.Error(w, "the store cannot be read; the controller's log says why", http.StatusBadGateway)
	}
}

// serve answers with the file. An error that comes after its first byte ends the connection: a cut-off file must not look
// whole.
func (c *Controller) serve(w http.ResponseWriter, r *http.Request, o offer) (err error) {
	if o.keptFor != "" {
		kept, err := c.loadFromCluster(r.Context(), o.keptFor, o.target.Kind)
		if err != nil {
			return err
		}
		if kept == nil {
			return fmt.Errorf("%s of %q is not in the cluster any more: %w", o.target.Kind, o.target.Name, backupstore.ErrNotFound)
		}
		c.send(w, o, bytes.NewReader(kept))
		return nil
	}
	location, err := c.location(r.Context(), o.location)
	if err != nil {
		return err
	}
	store, err := c.openStore(r.Context(), location)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	file, err := store.OpenDownload(r.Context(), o.target)
	if err != nil {
		return err
	}
	defer file.Close()
	c.send(w, o, file)
	return nil
}

// send writes a file, and ends the connection where that breaks off.
func (c *Controller) send(w http.ResponseWriter, o offer, file io.Reader) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Cache-Control", "no-store")
	if _, err := io.Copy(w, file); err != nil {
		c.cfg.Logger.Warn("Download broke off", "name", o.target.Name, "error", err)
		panic(http.ErrAbortHandler)
	}
}
