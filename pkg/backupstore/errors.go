package backupstore

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"cloud.google.com/go/storage"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/aws/smithy-go"
	"google.golang.org/api/googleapi"
)

// What a caller decides on. The methods wrap these.
var (
	// ErrNotFound comes when an object does not exist. For every file of a backup but its metadata and its archive that is
	// normal: older versions of Velero did not write it, or there was nothing to write.
	ErrNotFound = errors.New("does not exist in the store")
	// ErrNoBucket comes when the bucket, container or directory itself does not exist.
	ErrNoBucket = errors.New("there is no such bucket or directory: make it, or correct spec.objectStorage.bucket or config fspath")
	// ErrAccessDenied comes when the storage does not accept the credentials, or they are not enough.
	ErrAccessDenied = errors.New("access denied: check the location's credential and what it is allowed to do")
	// ErrInvalidLayout comes from Validate when the bucket holds something else besides backups.
	ErrInvalidLayout = errors.New("not a backup store: move them away, or give the location a prefix of its own")
	// ErrInvalidName comes for what cannot be the name of a backup or restore.
	ErrInvalidName = errors.New("not a name of a backup or restore")
	// ErrReadOnly comes when something would have to be written to a location whose access mode is ReadOnly.
	ErrReadOnly = errors.New("the location is read-only (spec.accessMode)")
	// ErrDamaged comes for a file or archive that is not what Velero writes: cut off, of another format, or made to harm.
	ErrDamaged = errors.New("damaged")
	// ErrTooLarge comes for a file or archive beyond the limits of this package or of ArchiveOptions.
	ErrTooLarge = errors.New("too large")
	// ErrStalled comes when a storage stops to send an object that is being read, or a list of objects.
	ErrStalled = errors.New("the storage has stopped sending")
	// ErrNoURL comes from DownloadURL for a storage or a credential that cannot sign one.
	ErrNoURL = errors.New("no URL can be signed for this storage with these credentials")
	// ErrNotRestorable comes from CheckRestorable.
	ErrNotRestorable = errors.New("backup cannot be restored")
)

// faultError is what a storage's library says, in this package's words.
type faultError struct {
	operation string // such as "read s3:https://minio:9000/bucket/backups/b/velero-backup.json"
	text      string // the library's error, without secrets
	sentinel  error  // one of this package's, or nil
	err       error
}

// Error names the operation, the kind of failure and the library's error.
func (e *faultError) Error() string {
	if e.sentinel == nil {
		return e.operation + ": " + e.text
	}
	return fmt.Sprintf("%s: %v (%s)", e.operation, e.sentinel, e.text)
}

// Unwrap gives this package's error and the library's.
func (e *faultError) Unwrap() []error {
	if e.sentinel == nil {
		return []error{e.err}
	}
	return []error{e.sentinel, e.err}
}

// classify returns what an error of a cloud's library means, or nil. It does not ask gocloud.dev, which takes a refused
// request to Google and any S3 error with "301" in its text, such as in a request's id, for an object that does not exist:
// the orphaned backups of such an error would be deleted.
func classify(err error) error {
	var s3Error smithy.APIError
	var azureError *azcore.ResponseError
	var googleError *googleapi.Error
	switch {
	case errors.Is(err, storage.ErrBucketNotExist):
		return ErrNoBucket
	case errors.Is(err, storage.ErrObjectNotExist):
		return ErrNotFound
	case errors.As(err, &s3Error):
		return classifyS3(s3Error.ErrorCode())
	case errors.As(err, &azureError):
		return classifyAzure(azureError)
	case errors.As(err, &googleError):
		return classifyStatus(googleError.Code)
	default:
		return nil
	}
}

func classifyS3(code string) error {
	switch code {
	case "NoSuchKey", "NotFound": // the latter for HEAD, whose answers have no text
		return ErrNotFound
	case "NoSuchBucket":
		return ErrNoBucket
	case "AccessDenied", "Forbidden", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "AllAccessDisabled",
		"XAdminUserNotFound": // versitygw
		return ErrAccessDenied
	default:
		return nil
	}
}

func classifyAzure(err *azcore.ResponseError) error {
	switch {
	case bloberror.HasCode(err, bloberror.ContainerNotFound):
		return ErrNoBucket
	case bloberror.HasCode(err, bloberror.BlobNotFound, bloberror.ResourceNotFound):
		return ErrNotFound
	case slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden}, err.StatusCode):
		return ErrAccessDenied
	default:
		return nil
	}
}

func classifyStatus(code int) error {
	switch code {
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrAccessDenied
	default:
		return nil
	}
}

// explain adds to a library's text what a person can do about it.
func explain(err error, text string) string {
	var unknownAuthority x509.UnknownAuthorityError
	var wrongHost x509.HostnameError
	var s3Error smithy.APIError
	switch {
	case errors.As(err, &unknownAuthority):
		return "the server's certificate is not trusted: put its CA into spec.objectStorage.caCert: " + text
	case errors.As(err, &wrongHost):
		return "the server's certificate is for another host than the one in config s3Url: " + text
	case errors.As(err, &s3Error) && slices.Contains([]string{"PermanentRedirect", "AuthorizationHeaderMalformed"}, s3Error.ErrorCode()):
		return "the bucket lies in another region: correct config region: " + text
	default:
		return text
	}
}
