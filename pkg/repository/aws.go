package repository

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// restic takes the role to assume from here, since 0.17; before, it works as the role's source (docs/contracts/restic-kopia.md 6).
const assumeRoleARN = "RESTIC_AWS_ASSUME_ROLE_ARN"

// aws gives the worker S3 credentials: those of the location's own file, else keys in the agent's environment, else the
// agent's default file, else what the agent's environment offers besides: web identity (IRSA), container credentials (EKS
// pod identity) or, with nothing set at all, the node's role. A file goes before web identity, as in Velero.
func (r *Resolver) aws(ctx context.Context, location *velerov1.BackupStorageLocation, env environment) error {
	config := location.Spec.Config
	env.pass("AWS_DEFAULT_REGION", "AWS_REGION")
	env.set("AWS_DEFAULT_REGION", config["region"])

	file, err := r.credentialsFile(ctx, location, "AWS_SHARED_CREDENTIALS_FILE")
	name := config["profile"]
	// The AWS SDK, and with it Velero, goes on without a default file that is not there.
	if optional := file.shared && name == ""; err != nil && (!optional || !errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	if file.shared && name == "" && env.lookup("AWS_ACCESS_KEY_ID") != "" {
		env.passAWS()
		return nil
	}
	named := name != ""
	if !named {
		name = env.lookup("AWS_PROFILE")
	}
	if name == "" {
		name = "default"
	}
	profiles := awsProfiles{env: env, file: file, all: parseProfiles(file.data)}
	if _, ok := profiles.all[name]; !ok && file.shared && !named {
		// Velero mounts one file for all providers: on an installation for Azure it has no AWS profile.
		env.passAWS()
		return nil
	}
	return profiles.use(name, nil)
}

// passAWS gives the worker the credentials in the agent's environment.
func (e environment) passAWS() {
	e.pass("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
		assumeRoleARN, "RESTIC_AWS_ASSUME_ROLE_SESSION_NAME", "RESTIC_AWS_ASSUME_ROLE_EXTERNAL_ID",
		"RESTIC_AWS_ASSUME_ROLE_REGION", "RESTIC_AWS_ASSUME_ROLE_POLICY", "RESTIC_AWS_ASSUME_ROLE_STS_ENDPOINT")
	e.passFile("AWS_WEB_IDENTITY_TOKEN_FILE")
	e.passFile("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
}

// awsProfiles are the profiles of a credentials file, on their way into a worker's environment.
type awsProfiles struct {
	env  environment
	file credentialsFile
	all  map[string]profile
}

// use gives the worker a profile's credentials. users are the profiles that name this one as their source.
func (a awsProfiles) use(name string, users []string) error {
	p, ok := a.all[name]
	if !ok {
		return misconfigured("%s has no profile %q", a.file.from, name)
	}
	if token := p["web_identity_token_file"]; token != "" && p["role_arn"] != "" {
		a.env.setFile("AWS_WEB_IDENTITY_TOKEN_FILE", token)
		a.env.set("AWS_ROLE_ARN", p["role_arn"])
		a.env.set("AWS_ROLE_SESSION_NAME", p["role_session_name"])
		return nil
	}
	if err := a.useSource(name, p, users); err != nil {
		return err
	}
	if p["role_arn"] == "" {
		return nil
	}
	if _, ok := a.env.repo.Env[assumeRoleARN]; ok {
		return fmt.Errorf("%s: profile %q assumes a role by way of another role: %w", a.file.from, name, uploader.ErrUnsupported)
	}
	a.env.set(assumeRoleARN, p["role_arn"])
	a.env.set("RESTIC_AWS_ASSUME_ROLE_SESSION_NAME", p["role_session_name"])
	a.env.set("RESTIC_AWS_ASSUME_ROLE_EXTERNAL_ID", p["external_id"])
	return nil
}

// useSource gives the worker the credentials that a profile starts from.
func (a awsProfiles) useSource(name string, p profile, users []string) error {
	source := p["source_profile"]
	id, secret := p["aws_access_key_id"], p["aws_secret_access_key"]
	switch {
	case slices.Contains(users, source):
		return misconfigured("%s: profile %q is its own source", a.file.from, source)
	case source != "" && source != name:
		return a.use(source, append(users, name))
	case id != "" && secret != "":
		a.useKeys(name, p)
	case id != "" || secret != "":
		return misconfigured("%s: profile %q has only one of aws_access_key_id and aws_secret_access_key", a.file.from, name)
	case p["credential_process"] != "" || p["sso_session"] != "" || p["sso_start_url"] != "":
		return fmt.Errorf("%s: profile %q gets its credentials from a program or a login, not from keys or a role: %w",
			a.file.from, name, uploader.ErrUnsupported)
	default:
		a.env.passAWS()
	}
	return nil
}

// useKeys gives the worker a profile's keys. Temporary ones in a mounted file may be renewed there while the worker runs.
// restic reads that file again before each request from 0.16 on (measured; 0.14 reads it once), so it gets the file,
// except as the source of a role.
func (a awsProfiles) useKeys(name string, p profile) {
	if p["aws_session_token"] != "" && a.file.path != "" && p["role_arn"] == "" {
		a.env.setFile("AWS_SHARED_CREDENTIALS_FILE", a.file.path)
		a.env.set("AWS_PROFILE", name)
		return
	}
	a.env.set("AWS_ACCESS_KEY_ID", p["aws_access_key_id"])
	a.env.set("AWS_SECRET_ACCESS_KEY", p["aws_secret_access_key"])
	a.env.set("AWS_SESSION_TOKEN", p["aws_session_token"])
}
