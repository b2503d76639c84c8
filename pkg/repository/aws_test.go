package repository_test

import (
	"maps"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

const (
	awsKeys = `
[default]
aws_access_key_id = ID
aws_secret_access_key = HuSh+/=

[other]
aws_access_key_id=OTHER
aws_secret_access_key=HuSh-other
aws_session_token=HuSh-token
`
	defaultFile = "/credentials/cloud"
	irsaDir     = "/var/run/secrets/eks.amazonaws.com/serviceaccount"
	irsaToken   = irsaDir + "/token"
)

func TestResolveAWSOwnCredential(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		content string
		config  []string
		env     map[string]string
		want    map[string]string
		paths   []string
	}{
		{
			name: "keys, whatever the agent has", content: awsKeys,
			env:  map[string]string{"AWS_ACCESS_KEY_ID": "AGENT", "AWS_SECRET_ACCESS_KEY": marker, "AWS_WEB_IDENTITY_TOKEN_FILE": irsaToken, "AWS_ROLE_ARN": "arn"},
			want: map[string]string{"AWS_ACCESS_KEY_ID": "ID", "AWS_SECRET_ACCESS_KEY": "HuSh+/="},
		},
		{
			name: "profile of the config, session token, region", content: awsKeys, config: []string{"profile", "other", "region", "minio"},
			env: map[string]string{"AWS_PROFILE": "default", "AWS_DEFAULT_REGION": "agent", "AWS_REGION": "sts"},
			want: map[string]string{
				"AWS_ACCESS_KEY_ID": "OTHER", "AWS_SECRET_ACCESS_KEY": "HuSh-other", "AWS_SESSION_TOKEN": "HuSh-token",
				"AWS_DEFAULT_REGION": "minio", "AWS_REGION": "sts",
			},
		},
		{
			name: "web identity of the profile", content: "[default]\nrole_arn=arn:role\nweb_identity_token_file=/mnt/aws/token\nrole_session_name=us",
			want:  map[string]string{"AWS_ROLE_ARN": "arn:role", "AWS_WEB_IDENTITY_TOKEN_FILE": "/mnt/aws/token", "AWS_ROLE_SESSION_NAME": "us"},
			paths: []string{"/mnt/aws"},
		},
		{
			name: "role from another profile's keys", content: awsKeys + "\n[profile role]\nrole_arn=arn:role\nsource_profile=other\nexternal_id=x\nrole_session_name=us",
			config: []string{"profile", "role"},
			want: map[string]string{
				"AWS_ACCESS_KEY_ID": "OTHER", "AWS_SECRET_ACCESS_KEY": "HuSh-other", "AWS_SESSION_TOKEN": "HuSh-token",
				"RESTIC_AWS_ASSUME_ROLE_ARN": "arn:role", "RESTIC_AWS_ASSUME_ROLE_EXTERNAL_ID": "x", "RESTIC_AWS_ASSUME_ROLE_SESSION_NAME": "us",
			},
		},
		{
			name: "role from its own keys", content: "[default]\nrole_arn=arn:role\nsource_profile=default\naws_access_key_id=ID\naws_secret_access_key=HuSh",
			want: map[string]string{"AWS_ACCESS_KEY_ID": "ID", "AWS_SECRET_ACCESS_KEY": "HuSh", "RESTIC_AWS_ASSUME_ROLE_ARN": "arn:role"},
		},
		{
			name: "role from the agent's web identity", content: "[default]\nrole_arn=arn:role",
			env: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": irsaToken, "AWS_ROLE_ARN": "arn:agent"},
			want: map[string]string{
				"AWS_WEB_IDENTITY_TOKEN_FILE": irsaToken, "AWS_ROLE_ARN": "arn:agent", "RESTIC_AWS_ASSUME_ROLE_ARN": "arn:role",
			},
			paths: []string{irsaDir},
		},
		{
			name: "role from the node's", content: "[default]\nrole_arn=arn:role\ncredential_source=Ec2InstanceMetadata",
			want: map[string]string{"RESTIC_AWS_ASSUME_ROLE_ARN": "arn:role"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			c.env = tt.env
			repo := c.resolve(t, c.withSecret(location("aws", tt.config...), tt.content))
			wantEnv(t, repo, tt.want)
			wantReadPaths(t, repo, tt.paths...)
		})
	}
}

func TestResolveAWSAgentCredentials(t *testing.T) {
	t.Parallel()
	temporary := "[default]\naws_access_key_id=ID\naws_secret_access_key=HuSh\naws_session_token=HuSh-token"
	fromFile := map[string]string{"AWS_ACCESS_KEY_ID": "ID", "AWS_SECRET_ACCESS_KEY": "HuSh+/="}
	tests := []struct {
		name   string
		files  map[string]string
		config []string
		env    map[string]string
		want   map[string]string
		paths  []string
	}{
		{name: "default file", files: map[string]string{defaultFile: awsKeys}, want: fromFile},
		{
			name: "default file before web identity", files: map[string]string{defaultFile: awsKeys},
			env: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": irsaToken, "AWS_ROLE_ARN": "arn"}, want: fromFile,
		},
		{
			name: "keys of the agent before the default file", files: map[string]string{defaultFile: awsKeys},
			env:  map[string]string{"AWS_ACCESS_KEY_ID": "AGENT", "AWS_SECRET_ACCESS_KEY": "HuSh"},
			want: map[string]string{"AWS_ACCESS_KEY_ID": "AGENT", "AWS_SECRET_ACCESS_KEY": "HuSh"},
		},
		{
			name: "a named profile before keys of the agent", files: map[string]string{defaultFile: awsKeys}, config: []string{"profile", "default"},
			env: map[string]string{"AWS_ACCESS_KEY_ID": "AGENT", "AWS_SECRET_ACCESS_KEY": "HuSh"}, want: fromFile,
		},
		{
			name: "profile of the agent", files: map[string]string{defaultFile: "[x]\naws_access_key_id=X\naws_secret_access_key=HuSh"},
			env: map[string]string{"AWS_PROFILE": "x"}, want: map[string]string{"AWS_ACCESS_KEY_ID": "X", "AWS_SECRET_ACCESS_KEY": "HuSh"},
		},
		{
			name: "temporary keys stay in the mounted file", files: map[string]string{defaultFile: temporary},
			want:  map[string]string{"AWS_SHARED_CREDENTIALS_FILE": defaultFile, "AWS_PROFILE": "default"},
			paths: []string{"/credentials"},
		},
		{
			name: "file of the config", files: map[string]string{"/mnt/own": awsKeys, defaultFile: temporary},
			config: []string{"credentialsFile", "/mnt/own"}, want: fromFile,
		},
		{
			name: "IRSA", env: map[string]string{
				"AWS_SHARED_CREDENTIALS_FILE": "", "AWS_WEB_IDENTITY_TOKEN_FILE": irsaToken, "AWS_ROLE_ARN": "arn", "AWS_REGION": "eu-west-1", "AWS_STS_REGIONAL_ENDPOINTS": "regional",
			},
			want:  map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": irsaToken, "AWS_ROLE_ARN": "arn", "AWS_REGION": "eu-west-1"},
			paths: []string{irsaDir},
		},
		{
			name: "IRSA beside a default file that is not there", env: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": irsaToken, "AWS_ROLE_ARN": "arn"},
			want: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": irsaToken, "AWS_ROLE_ARN": "arn"}, paths: []string{irsaDir},
		},
		{
			name: "IRSA beside another cloud's default file", files: map[string]string{defaultFile: "AZURE_STORAGE_KEY=HuSh\n"},
			env:  map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": irsaToken, "AWS_ROLE_ARN": "arn"},
			want: map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": irsaToken, "AWS_ROLE_ARN": "arn"}, paths: []string{irsaDir},
		},
		{
			name: "EKS pod identity", env: map[string]string{
				"AWS_CONTAINER_CREDENTIALS_FULL_URI":     "http://169.254.170.23/v1/credentials",
				"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/var/run/secrets/pods.eks.amazonaws.com/serviceaccount/eks-pod-identity-token",
			},
			want: map[string]string{
				"AWS_CONTAINER_CREDENTIALS_FULL_URI":     "http://169.254.170.23/v1/credentials",
				"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/var/run/secrets/pods.eks.amazonaws.com/serviceaccount/eks-pod-identity-token",
			},
			paths: []string{"/var/run/secrets/pods.eks.amazonaws.com/serviceaccount"},
		},
		{name: "role of the node", want: map[string]string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			c.files = tt.files
			c.env["AWS_SHARED_CREDENTIALS_FILE"] = defaultFile
			maps.Copy(c.env, tt.env)
			repo := c.resolve(t, location("aws", tt.config...))
			wantEnv(t, repo, tt.want)
			wantReadPaths(t, repo, tt.paths...)
		})
	}
}

func TestResolveAWSErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		content string
		config  []string
		wraps   error
		says    []string
	}{
		{"no such profile", awsKeys, []string{"profile", "nope"}, repository.ErrMisconfigured, []string{`"cloud"`, "velero/own", `"nope"`}},
		{"no profile at all", marker, nil, repository.ErrMisconfigured, []string{`"default"`}},
		{"only an id", "[default]\naws_access_key_id=HuSh", nil, repository.ErrMisconfigured, []string{"only one of"}},
		{"only a secret", "[default]\naws_secret_access_key=HuSh", nil, repository.ErrMisconfigured, []string{"only one of"}},
		{"missing source", "[default]\nrole_arn=a\nsource_profile=base", nil, repository.ErrMisconfigured, []string{`"base"`}},
		{"sources in a circle", "[default]\nsource_profile=b\n[b]\nsource_profile=default\n", nil, repository.ErrMisconfigured, []string{"own source"}},
		{"role by role", awsKeys + "[a]\nrole_arn=a\nsource_profile=b\n[b]\nrole_arn=b\nsource_profile=other", []string{"profile", "a"}, uploader.ErrUnsupported, []string{"another role"}},
		{"program", "[default]\ncredential_process=/bin/x --password HuSh", nil, uploader.ErrUnsupported, []string{"program"}},
		{"single sign-on", "[default]\nsso_session=HuSh", nil, uploader.ErrUnsupported, []string{"log"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			c.wantError(t, c.withSecret(location("aws", tt.config...), tt.content), shop, tt.wraps, tt.says...)
		})
	}
}

func TestResolveCredentialErrors(t *testing.T) {
	t.Parallel()
	for _, l := range []string{"aws", "azure", "gcp"} {
		c := newCluster()
		c.secrets["own"] = map[string][]byte{"other": []byte(marker), "empty": nil}
		loc := location(l, "storageAccount", "acct")
		for key, says := range map[string]string{"cloud": `has no key "cloud"`, "empty": `key "empty" of Secret velero/own is empty`} {
			loc.Spec.Credential = selector("own", key)
			c.wantError(t, loc, shop, repository.ErrMisconfigured, says, "velero/own", "spec.credential")
		}
		loc.Spec.Credential = selector("gone", "cloud")
		c.wantError(t, loc, shop, repository.ErrMisconfigured, "velero/gone does not exist", "spec.credential")
		c.wantError(t, location(l, "storageAccount", "acct", "credentialsFile", "/mnt/gone"), shop, repository.ErrMisconfigured, "/mnt/gone", "credentialsFile")
	}
	c := newCluster()
	c.env = map[string]string{"AWS_SHARED_CREDENTIALS_FILE": "/mnt/gone", "GOOGLE_APPLICATION_CREDENTIALS": "/mnt/gone", "AZURE_CREDENTIALS_FILE": "/mnt/gone"}
	c.wantError(t, location("gcp"), shop, repository.ErrMisconfigured, "/mnt/gone", "the agent's GOOGLE_APPLICATION_CREDENTIALS")
	c.wantError(t, location("azure", "storageAccount", "a"), shop, repository.ErrMisconfigured, "/mnt/gone", "the agent's AZURE_CREDENTIALS_FILE")
	c.wantError(t, location("aws", "profile", "p"), shop, repository.ErrMisconfigured, "/mnt/gone", "the agent's AWS_SHARED_CREDENTIALS_FILE")
	delete(c.env, "AWS_SHARED_CREDENTIALS_FILE")
	c.wantError(t, location("aws", "profile", "p"), shop, repository.ErrMisconfigured, "spec.credential is not set", "AWS_SHARED_CREDENTIALS_FILE", `"p"`)
}
