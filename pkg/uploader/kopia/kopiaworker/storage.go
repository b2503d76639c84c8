package kopiaworker

import (
	"errors"
	"fmt"
	"os"

	"github.com/kopia/kopia/repo/blob"
	"github.com/kopia/kopia/repo/blob/azure"
	"github.com/kopia/kopia/repo/blob/filesystem"
	"github.com/kopia/kopia/repo/blob/gcs"
	"github.com/kopia/kopia/repo/blob/s3"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// Modes of files and directories of a repository in the file system, as in Velero.
const (
	repositoryFileMode      = 0o600
	repositoryDirectoryMode = 0o700
)

// storage is the request's storage as kopia describes it, with as few credentials in it as possible: kopia writes the
// description to its configuration file in clear text, and finds most credentials in the environment just as well.
func (j *job) storage() (blob.ConnectionInfo, error) {
	if j.Storage == nil {
		return blob.ConnectionInfo{Type: "filesystem", Config: &filesystem.Options{
			Path: j.Directory, FileMode: repositoryFileMode, DirectoryMode: repositoryDirectoryMode,
		}}, nil
	}
	if j.InsecureSkipTLSVerify && j.Storage.Type != uploader.StorageS3 {
		return blob.ConnectionInfo{}, fmt.Errorf("kopia with insecureSkipTLSVerify on storage %q: %w", j.Storage.Type, uploader.ErrUnsupported)
	}
	switch j.Storage.Type {
	case uploader.StorageS3:
		options, err := j.s3()
		return blob.ConnectionInfo{Type: "s3", Config: options}, err
	case uploader.StorageAzure:
		options, err := j.azure()
		return blob.ConnectionInfo{Type: "azureBlob", Config: options}, err
	case uploader.StorageGCS:
		// The Google library looks for credentials in the environment and asks the metadata server.
		return blob.ConnectionInfo{Type: "gcs", Config: &gcs.Options{
			BucketName: j.Storage.Bucket, Prefix: j.Storage.Prefix, ReadOnly: j.ReadOnly,
		}}, nil
	default:
		return blob.ConnectionInfo{}, fmt.Errorf("storage %q: %w", j.Storage.Type, uploader.ErrUnsupported)
	}
}

// s3 takes the credentials from the environment: kopia looks there for keys, then for a web identity, then asks the
// metadata server.
func (j *job) s3() (*s3.Options, error) {
	if err := readProfile(); err != nil {
		return nil, err
	}
	o := &s3.Options{
		BucketName: j.Storage.Bucket, Prefix: j.Storage.Prefix, Endpoint: j.Storage.Endpoint, Region: j.Storage.Region,
		DoNotUseTLS: j.Storage.DisableTLS, DoNotVerifyTLS: j.InsecureSkipTLSVerify,
	}
	// The role to assume comes under restic's names for it, see package repository.
	role := os.Getenv("RESTIC_AWS_ASSUME_ROLE_ARN")
	if role == "" {
		return o, nil
	}
	if os.Getenv("AWS_ACCESS_KEY_ID") == "" || os.Getenv("RESTIC_AWS_ASSUME_ROLE_EXTERNAL_ID") != "" {
		return nil, fmt.Errorf("kopia can assume a role with an access key only, and without an external id: %w", uploader.ErrUnsupported)
	}
	o.AccessKeyID, o.SecretAccessKey = os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	o.SessionToken = os.Getenv("AWS_SESSION_TOKEN")
	o.RoleARN, o.SessionName, o.RoleRegion = role, os.Getenv("RESTIC_AWS_ASSUME_ROLE_SESSION_NAME"), j.Storage.Region
	o.RoleEndpoint = os.Getenv("RESTIC_AWS_ASSUME_ROLE_STS_ENDPOINT")
	if o.RoleEndpoint == "" {
		o.RoleEndpoint = "https://sts.amazonaws.com"
	}
	return o, nil
}

// readProfile puts the keys of a mounted credentials file into the environment, where kopia finds them.
func readProfile() error {
	file := os.Getenv("AWS_SHARED_CREDENTIALS_FILE")
	if file == "" || os.Getenv("AWS_ACCESS_KEY_ID") != "" {
		return nil
	}
	keys, err := credentials.NewFileAWSCredentials(file, os.Getenv("AWS_PROFILE")).GetWithContext(nil)
	if err != nil {
		return fmt.Errorf("read AWS credentials file %s: %w", file, err)
	}
	return errors.Join(
		os.Setenv("AWS_ACCESS_KEY_ID", keys.AccessKeyID),
		os.Setenv("AWS_SECRET_ACCESS_KEY", keys.SecretAccessKey),
		os.Setenv("AWS_SESSION_TOKEN", keys.SessionToken),
	)
}

func (j *job) azure() (*azure.Options, error) {
	o := &azure.Options{
		Container: j.Storage.Bucket, Prefix: j.Storage.Prefix,
		StorageAccount: os.Getenv("AZURE_ACCOUNT_NAME"),
		StorageKey:     os.Getenv("AZURE_ACCOUNT_KEY"),
		SASToken:       os.Getenv("AZURE_ACCOUNT_SAS"),
		TenantID:       os.Getenv("AZURE_TENANT_ID"),
		ClientID:       os.Getenv("AZURE_CLIENT_ID"),
		ClientSecret:   os.Getenv("AZURE_CLIENT_SECRET"),

		AzureFederatedTokenFile: os.Getenv("AZURE_FEDERATED_TOKEN_FILE"),
	}
	if suffix := os.Getenv("AZURE_ENDPOINT_SUFFIX"); suffix != "" {
		o.StorageDomain = "blob." + suffix
	}
	if file := os.Getenv("AZURE_CLIENT_CERTIFICATE_PATH"); file != "" {
		certificate, err := os.ReadFile(file) //nolint:gosec // the path is the administrator's, and Landlock holds
		if err != nil {
			return nil, fmt.Errorf("read Azure client certificate: %w", err)
		}
		o.ClientCertificate = string(certificate)
	}
	if o.StorageKey == "" && o.SASToken == "" && o.ClientSecret == "" && o.ClientCertificate == "" && o.AzureFederatedTokenFile == "" {
		return nil, fmt.Errorf("kopia with the node's managed identity on Azure: %w; give the storage account's access key, "+
			"a service principal or a workload identity", uploader.ErrUnsupported)
	}
	return o, nil
}
