package repository

import (
	"context"
	"encoding/json"
	"path/filepath"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

const googleFile = "GOOGLE_APPLICATION_CREDENTIALS"

// gcp gives the worker the location's own or the agent's default credentials file. Without one, restic asks the metadata
// server for the agent's workload identity.
func (r *Resolver) gcp(ctx context.Context, location *velerov1.BackupStorageLocation, env environment) error {
	env.pass("GOOGLE_PROJECT_ID")
	file, err := r.credentialsFile(ctx, location, googleFile)
	if err != nil {
		return err
	}
	if len(file.data) == 0 && file.path == "" {
		env.pass("GOOGLE_ACCESS_TOKEN")
		return nil
	}
	var content struct {
		ProjectID        string `json:"project_id"`
		CredentialSource struct {
			File string `json:"file"`
		} `json:"credential_source"`
	}
	// The decoder's error quotes the file, so it stays out of ours.
	if json.Unmarshal(file.data, &content) != nil {
		return misconfigured("%s is not a JSON file of Google Cloud credentials", file.from)
	}
	env.set("GOOGLE_PROJECT_ID", content.ProjectID)
	env.repo.Files[googleFile] = uploader.Secret(file.data)
	// Workload identity federation: the file names a mounted token that Kubernetes renews.
	if token := content.CredentialSource.File; token != "" {
		env.readPath(filepath.Dir(token))
	}
	return nil
}
