package podvolume

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/repository/recorded"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

const (
	dialTimeout = 5 * time.Second
	openTimeout = 15 * time.Second
	// probedNamespace has a repository only by chance: what opens it finds out whether the storage answers.
	probedNamespace = "plimsoll-doctor"

	uploaderRestic = "restic"
)

// CheckLocation opens a repository of the BackupStorageLocation with each uploader that has one there, and with
// otherwise where that has none. It writes nothing to the storage. ctx bounds all of it.
func (e *Environment) CheckLocation(ctx context.Context, name, otherwise string) []v1alpha1.LocationCheck {
	var location velerov1.BackupStorageLocation
	if err := e.API.Get(ctx, types.NamespacedName{Namespace: e.Namespace, Name: name}, &location); err != nil {
		check := v1alpha1.LocationCheck{Location: name, Outcome: v1alpha1.LocationNotChecked, Cause: "the API server does not show it to the node agent", Message: err.Error()}
		if apierrors.IsNotFound(err) {
			check.Outcome, check.Reason, check.Cause = v1alpha1.LocationFailed, v1alpha1.ReasonInvalidLocation, "it does not exist"
		}
		return []v1alpha1.LocationCheck{check}
	}
	all := e.knownRepositories(ctx)
	repositories := repositoriesAt(all, name)
	if _, has := repositories[otherwise]; !has && e.Uploaders[otherwise] != nil {
		repositories[otherwise] = ""
	}
	var checks []v1alpha1.LocationCheck
	for uploaderType, namespace := range repositories {
		check := v1alpha1.LocationCheck{Location: name, Uploader: uploaderType, Repository: namespace}
		request := repository.Request{UploaderType: uploaderType, Namespace: cmp.Or(namespace, probedNamespace)}
		if uploaderType == uploaderRestic { // what a restore reads
			request.Identifier = recorded.ResticIdentifierOf(all, namespace, name)
		}
		e.checkRepository(ctx, &location, request, &check)
		checks = append(checks, check)
	}
	slices.SortFunc(checks, func(a, b v1alpha1.LocationCheck) int { return cmp.Compare(a.Uploader, b.Uploader) })
	return checks
}

// knownRepositories returns the BackupRepositories of a Velero server, sorted by name.
func (e *Environment) knownRepositories(ctx context.Context) []velerov1.BackupRepository {
	var list velerov1.BackupRepositoryList
	if err := e.API.List(ctx, &list, client.InNamespace(e.Namespace)); err != nil {
		e.Logger.Debug("Cannot read the BackupRepositories", "error", err)
		return nil
	}
	slices.SortFunc(list.Items, func(a, b velerov1.BackupRepository) int { return cmp.Compare(a.Name, b.Name) })
	return list.Items
}

// repositoriesAt returns one namespace with a repository at the location for each uploader: the first that is ready.
func repositoriesAt(all []velerov1.BackupRepository, location string) map[string]string {
	found := map[string]string{}
	for i := range all {
		r := &all[i]
		uploaderType := v1alpha1.UploaderName(r.Spec.RepositoryType)
		if r.Spec.BackupStorageLocation == location && r.Status.Phase == velerov1.BackupRepositoryPhaseReady && found[uploaderType] == "" {
			found[uploaderType] = r.Spec.VolumeNamespace
		}
	}
	return found
}

// checkRepository fills in what came of opening a repository.
func (e *Environment) checkRepository(ctx context.Context, location *velerov1.BackupStorageLocation, request repository.Request, check *v1alpha1.LocationCheck) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	opener, ok := e.Uploaders[check.Uploader].(uploader.Opener)
	if !ok {
		check.Outcome, check.Cause = v1alpha1.LocationNotChecked, "the node agent does not have this uploader"
		return
	}
	repo, err := e.resolver.Resolve(ctx, location, request)
	if err == nil {
		err = dialStorage(ctx, repo)
	}
	if err == nil {
		err = opener.Open(ctx, repo)
	}
	check.Outcome = v1alpha1.LocationFailed
	switch {
	case err == nil:
		check.Outcome = v1alpha1.LocationOpened
		return
	case isMissing(err, repo):
		check.Outcome = v1alpha1.LocationNoRepository
		return
	case errors.Is(err, uploader.ErrWrongPassword):
		check.Reason = v1alpha1.ReasonWrongPassword
	case errors.Is(err, repository.ErrMisconfigured):
		check.Reason = v1alpha1.ReasonInvalidLocation
	default:
		check.Reason = v1alpha1.ReasonDataPath
	}
	check.Cause, check.Message = causeOf(err), err.Error()
	e.Logger.Warn("Self-check: cannot open a repository", "location", check.Location, "uploader", check.Uploader, "repository", check.Repository, "error", err)
}

// dialStorage connects to the storage's server, where its address has one: restic and kopia try for minutes, and do not say
// then what it was. Proxies have to be left to them.
func dialStorage(ctx context.Context, repo uploader.Repository) error {
	for name := range repo.Env {
		if strings.HasSuffix(strings.ToUpper(name), "_PROXY") && !strings.EqualFold(name, "NO_PROXY") {
			return nil
		}
	}
	kind, address, _ := strings.Cut(repo.URL, ":")
	if kind != "s3" && kind != "rest" {
		return nil
	}
	if !strings.Contains(address, "://") {
		address = "https://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" {
		return nil //nolint:nilerr // restic and kopia say what is wrong with it
	}
	port := cmp.Or(u.Port(), map[bool]string{true: "80", false: "443"}[u.Scheme == "http"])
	dialer := net.Dialer{Timeout: dialTimeout}
	connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return err
	}
	return connection.Close()
}

// isMissing reports whether the storage answers, and has no repository. The data paths say the same of a bucket that is missing, or that they
// may not read. Their messages have the address, in which anything may stand.
func isMissing(err error, repo uploader.Repository) bool {
	return errors.Is(err, uploader.ErrRepositoryNotFound) && causeOf(errors.New(strings.NewReplacer(repo.URL, "", repo.Address(), "").Replace(err.Error()))) == ""
}

// causeRefused is the cause of all that a storage says of credentials.
const causeRefused = "the storage refuses the credentials"

// causes are words in errors of storages, in small letters, and what a self-check says of them.
var causes = []struct{ says, cause string }{
	{"connection refused", "connection refused"},
	{"no such host", "the name of the storage's server is not known"},
	{"server misbehaving", "the name of the storage's server is not known"},
	{"no route to host", "no route to the storage's server"},
	{"network is unreachable", "no route to the storage's server"},
	{"x509", "the storage's certificate is not trusted"},
	{"certificate", "the storage's certificate is not trusted"},
	{"access denied", causeRefused},
	{"accessdenied", causeRefused},
	{"invalidaccesskeyid", causeRefused},
	{"access key id", causeRefused},
	{"signature", causeRefused},
	{"authenticationfailed", causeRefused},
	{"403", causeRefused},
	{"nosuchbucket", "the bucket does not exist"},
	{"bucket does not exist", "the bucket does not exist"},
	{"i/o timeout", "timed out"},
	{"deadline exceeded", "timed out"},
	{"timeout", "timed out"},
}

// causeOf returns constant words for the cause of an error; empty if it has none of them. The error itself may have addresses.
func causeOf(err error) string {
	text := strings.ToLower(err.Error())
	for _, c := range causes {
		if strings.Contains(text, c.says) {
			return c.cause
		}
	}
	return ""
}
