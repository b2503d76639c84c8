package main

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

const (
	answerInterval = 100 * time.Millisecond // between two looks for an answer
	deleteTimeout  = 5 * time.Second
	fetchTimeout   = time.Minute
)

var (
	// errNoFile: the store does not have the file; older versions of Velero do not store all.
	errNoFile = errors.New("there is no such file")
	// errUnanswered: no server answers DownloadRequests.
	errUnanswered = errors.New("the DownloadRequest was not answered: neither a Velero server nor a restore controller seems to run in this namespace")
)

// downloads fetches files from the backup store as Velero's CLI does: it makes a DownloadRequest, and the server answers with
// a URL that is good for some minutes. That URL is as good as a password, so no error shows it.
type downloads struct {
	api       client.Client
	namespace string
	timeout   time.Duration // for an answer
	http      *http.Client
	hosts     storeHosts
}

// downloadOptions are what a person says of downloads.
type downloadOptions struct {
	timeout time.Duration // for an answer to a DownloadRequest
	caCert  string        // a file with certificates
	hosts   []string      // from which files may come, besides those of the BackupStorageLocations
}

// newDownloads trusts the system's certificates, those in the file caCert if it is named, and those of the namespace's
// BackupStorageLocations, as far as they and the Secrets that they refer to can be read.
func newDownloads(ctx context.Context, api client.Client, namespace string, o downloadOptions) (*downloads, error) {
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if o.caCert != "" {
		text, err := os.ReadFile(o.caCert)
		if err != nil {
			return nil, fmt.Errorf("read --cacert: %w", err)
		}
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("--cacert: no certificate in %s", o.caCert)
		}
	}
	d := &downloads{api: api, namespace: namespace, timeout: o.timeout, hosts: storeHosts{secure: o.hosts, insecure: o.hosts}}
	var locations velerov1.BackupStorageLocationList
	if err := api.List(ctx, &locations, client.InNamespace(namespace)); err == nil {
		for i := range locations.Items {
			d.hosts.allow(&locations.Items[i])
			roots.AppendCertsFromPEM(certificatesOf(ctx, api, &locations.Items[i]))
		}
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}}
	d.http = &http.Client{Transport: transport, Timeout: fetchTimeout, CheckRedirect: d.checkRedirect}
	return d, nil
}

// certificatesOf returns those that a location names, in caCertRef or caCert. It is empty if the Secret cannot be read: few
// people may, and --cacert takes its place.
func certificatesOf(ctx context.Context, api client.Reader, l *velerov1.BackupStorageLocation) []byte {
	storage := l.Spec.ObjectStorage
	switch {
	case storage == nil:
		return nil
	case storage.CACertRef == nil:
		return storage.CACert
	}
	var secret corev1.Secret
	if err := api.Get(ctx, client.ObjectKey{Namespace: l.Namespace, Name: storage.CACertRef.Name}, &secret); err != nil {
		return nil
	}
	return secret.Data[storage.CACertRef.Key]
}

// redirects is how many redirections are followed, as by Go's client.
const redirects = 10

func (d *downloads) checkRedirect(request *http.Request, via []*http.Request) error {
	if len(via) >= redirects {
		return errors.New("too many redirects")
	}
	return d.hosts.check(request.URL)
}

// addTo adds what is stored with the described operation, and a note for what cannot be had.
func (d *downloads) addTo(ctx context.Context, to *describe.Description) error {
	var err error
	to.Records, err = d.records(ctx, &to.Operation)
	switch {
	case errors.Is(err, errNoFile):
		to.Notes = append(to.Notes, noList(&to.Operation))
	case errors.Is(err, volumeinfo.ErrDamaged):
		to.Notes = append(to.Notes, shorten(fmt.Sprintf("the stored list of volumes is incomplete: %v", err)))
	case err != nil:
		to.Notes = append(to.Notes, fmt.Sprintf("the stored list of volumes cannot be read: %v", err))
	}
	if to.Operation.Errors+to.Operation.Warnings == 0 || errors.Is(err, errUnanswered) || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	to.Results, err = d.results(ctx, &to.Operation)
	if err != nil {
		to.Notes = append(to.Notes, shorten(fmt.Sprintf("the stored errors and warnings cannot be read: %v", err)))
	}
	return context.Cause(ctx)
}

// noList says why there is no list of volumes.
func noList(o *describe.Operation) string {
	switch {
	case o.Kind != describe.KindRestore:
		return "no list of volumes is stored: Velero stores one for backups since 1.13"
	case o.Items.DryRun:
		return "a dry run has no list of volumes"
	case o.Items.Step != "": // from our restore controller
		return "no list of volumes is stored, neither in the backup storage location nor in the cluster: the restore controller's log may say why"
	}
	return "no list of volumes is stored: Velero stores one for restores since 1.14"
}

// noteLimit is how much of an error is shown.
const noteLimit = 300

// shorten keeps the beginning of the first line: a damaged file has an error for each of its volumes.
func shorten(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	if len(line) > noteLimit {
		line = strings.ToValidUTF8(line[:noteLimit], "")
	}
	if len(line) < len(s) {
		line += " ..."
	}
	return line
}

// records reads the list of volumes. With volumeinfo.ErrDamaged come those that could be read.
func (d *downloads) records(ctx context.Context, o *describe.Operation) ([]describe.Record, error) {
	if o.Kind == describe.KindRestore {
		list, err := fetchFile(ctx, d, velerov1.DownloadTarget{Kind: velerov1.DownloadTargetKindRestoreVolumeInfo, Name: o.Name}, volumeinfo.DecodeRestore)
		return describe.OfRestoredVolumes(list), err
	}
	list, err := fetchFile(ctx, d, velerov1.DownloadTarget{Kind: velerov1.DownloadTargetKindBackupVolumeInfos, Name: o.Name}, volumeinfo.DecodeBackup)
	return describe.OfBackedUpVolumes(list), err
}

// results reads errors and warnings.
func (d *downloads) results(ctx context.Context, o *describe.Operation) (*describe.Results, error) {
	kind := velerov1.DownloadTargetKindBackupResults
	if o.Kind == describe.KindRestore {
		kind = velerov1.DownloadTargetKindRestoreResults
	}
	return fetchFile(ctx, d, velerov1.DownloadTarget{Kind: kind, Name: o.Name}, func(r io.Reader) (*describe.Results, error) {
		var results describe.Results
		if err := json.NewDecoder(io.LimitReader(r, volumeinfo.MaxBytes)).Decode(&results); err != nil {
			return nil, fmt.Errorf("the file is damaged: %w", err)
		}
		return &results, nil
	})
}

// fetchFile reads a packed file of the store. The error wraps errNoFile or errUnanswered, or is that of decode.
func fetchFile[T any](ctx context.Context, d *downloads, target velerov1.DownloadTarget, decode func(io.Reader) (T, error)) (T, error) {
	var none T
	address, err := d.ask(ctx, target)
	if err != nil {
		return none, err
	}
	body, err := d.get(ctx, address)
	if err != nil {
		return none, err
	}
	defer body.Close()
	unpacked, err := gzip.NewReader(body)
	if err != nil {
		return none, fmt.Errorf("%w: %w", volumeinfo.ErrDamaged, err)
	}
	return decode(unpacked)
}

// ask makes a DownloadRequest, waits for its answer and deletes it.
func (d *downloads) ask(ctx context.Context, target velerov1.DownloadTarget) (_ string, err error) {
	request := &velerov1.DownloadRequest{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.namespace, GenerateName: "kubectl-plimsoll-"},
		Spec:       velerov1.DownloadRequestSpec{Target: target},
	}
	switch err := d.api.Create(ctx, request); {
	case apierrors.IsInvalid(err): // the CRD of an older Velero does not know the kind of file
		return "", errNoFile
	case meta.IsNoMatchError(err):
		return "", errUnanswered
	case err != nil:
		return "", fmt.Errorf("ask for the file: %w", err)
	}
	defer func() {
		// A server deletes what it has answered; an unanswered request would stay forever.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), deleteTimeout)
		defer cancel()
		if failed := client.IgnoreNotFound(d.api.Delete(ctx, request)); failed != nil && err != nil {
			err = fmt.Errorf("%w; delete DownloadRequest %s: %w", err, request.Name, failed)
		}
	}()
	err = wait.PollUntilContextTimeout(ctx, answerInterval, d.timeout, true, func(ctx context.Context) (bool, error) {
		if err := d.api.Get(ctx, client.ObjectKeyFromObject(request), request); err != nil {
			return false, fmt.Errorf("wait for the URL of the file: %w", err)
		}
		return request.Status.DownloadURL != "", nil
	})
	switch {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case wait.Interrupted(err), errors.Is(err, context.DeadlineExceeded):
		return "", fmt.Errorf("%w (waited %s, --download-timeout)", errUnanswered, d.timeout)
	case err != nil:
		return "", err
	}
	return request.Status.DownloadURL, nil
}

// get fetches a URL.
func (d *downloads) get(ctx context.Context, address string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, errors.New("the server answered with an invalid URL")
	}
	if err := d.hosts.check(request.URL); err != nil {
		return nil, err
	}
	request.Header.Set("Accept-Encoding", "gzip") // or else the client would unpack it unasked, if the store names the encoding
	response, err := d.http.Do(request)
	if err != nil {
		if failed, ok := errors.AsType[*url.Error](err); ok {
			err = failed.Err
		}
		return nil, fmt.Errorf("fetch the file from %s: %w (docs/restore.md#downloads)", request.URL.Host, err)
	}
	switch response.StatusCode {
	case http.StatusOK:
		return response.Body, nil
	case http.StatusNotFound:
		err = errNoFile
	default:
		err = fmt.Errorf("fetch the file from %s: %s", request.URL.Host, response.Status)
	}
	return nil, errors.Join(err, response.Body.Close())
}
