package repository_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

func TestResolveAzure(t *testing.T) {
	t.Parallel()
	const federated = "/var/run/secrets/azure/tokens/azure-identity-token"
	tests := []struct {
		name    string
		content string // of the location's own file; "" for none
		config  []string
		env     map[string]string
		want    map[string]string
		files   map[string]string
		paths   []string
	}{
		{
			name: "key under its documented name", content: "AZURE_STORAGE_ACCOUNT_ACCESS_KEY=HuSh==\nAZURE_CLOUD_NAME=AzurePublicCloud\n",
			config: []string{"storageAccountKeyEnvVar", "AZURE_STORAGE_ACCOUNT_ACCESS_KEY"},
			want:   map[string]string{"AZURE_ACCOUNT_KEY": "HuSh=="},
		},
		{
			name: "key under another name, before AAD", content: "A=1\nMY_KEY=\"HuSh\"\n", config: []string{"storageAccountKeyEnvVar", "MY_KEY", "useAAD", "true"},
			want: map[string]string{"AZURE_ACCOUNT_KEY": "HuSh"},
		},
		{name: "key without storageAccountKeyEnvVar", content: "AZURE_STORAGE_ACCOUNT_ACCESS_KEY=HuSh", want: map[string]string{"AZURE_ACCOUNT_KEY": "HuSh"}},
		{name: "key under Velero's name", content: "AZURE_STORAGE_KEY=HuSh", want: map[string]string{"AZURE_ACCOUNT_KEY": "HuSh"}},
		{
			name: "cloud of China", content: "AZURE_STORAGE_KEY=HuSh\nAZURE_CLOUD_NAME=AzureChinaCloud",
			want: map[string]string{"AZURE_ACCOUNT_KEY": "HuSh", "AZURE_ENDPOINT_SUFFIX": "core.chinacloudapi.cn", "AZURE_AUTHORITY_HOST": "https://login.chinacloudapi.cn/"},
		},
		{
			name: "cloud of the US government, own authority", content: "AZURE_STORAGE_KEY=HuSh\nAZURE_CLOUD_NAME=AZUREUSGOVERNMENT",
			config: []string{"activeDirectoryAuthorityURI", "https://own.example/"},
			want:   map[string]string{"AZURE_ACCOUNT_KEY": "HuSh", "AZURE_ENDPOINT_SUFFIX": "core.usgovcloudapi.net", "AZURE_AUTHORITY_HOST": "https://own.example/"},
		},
		{
			name: "account URI", content: "AZURE_STORAGE_KEY=HuSh", config: []string{"storageAccountURI", "https://acct.blob.core.example.net/"},
			want: map[string]string{"AZURE_ACCOUNT_KEY": "HuSh", "AZURE_ENDPOINT_SUFFIX": "core.example.net"},
		},
		{
			name: "account URI that restic cannot have", content: "AZURE_STORAGE_KEY=HuSh", config: []string{"storageAccountURI", "http://azurite:10000/acct"},
			want: map[string]string{"AZURE_ACCOUNT_KEY": "HuSh"},
		},
		{
			name: "AAD in spite of a key", content: "AZURE_STORAGE_KEY=HuSh\nAZURE_CLIENT_ID=app", config: []string{"useAAD", "true"},
			want: map[string]string{"AZURE_CLIENT_ID": "app"},
		},
		{
			name: "service principal", content: "AZURE_TENANT_ID=t\nAZURE_CLIENT_ID=app\nAZURE_CLIENT_SECRET=HuSh~x\nAZURE_SUBSCRIPTION_ID=s\nAZURE_RESOURCE_GROUP=g",
			env:  map[string]string{"AZURE_CLIENT_ID": "agent"},
			want: map[string]string{"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "app", "AZURE_CLIENT_SECRET": "HuSh~x"},
		},
		{
			name: "certificate in the file", content: `AZURE_TENANT_ID=t` + "\n" + `AZURE_CLIENT_ID=app` + "\n" + `AZURE_CLIENT_CERTIFICATE="HuSh\nline"`,
			want: map[string]string{"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "app"}, files: map[string]string{"AZURE_CLIENT_CERTIFICATE_PATH": "HuSh\nline"},
		},
		{
			name: "certificate beside the file", content: "AZURE_TENANT_ID=t\nAZURE_CLIENT_ID=app\nAZURE_CLIENT_CERTIFICATE_PATH=/mnt/cert/c.pem",
			want: map[string]string{"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "app", "AZURE_CLIENT_CERTIFICATE_PATH": "/mnt/cert/c.pem"}, paths: []string{"/mnt/cert"},
		},
		{
			name: "workload identity", content: "AZURE_SUBSCRIPTION_ID=s\nAZURE_RESOURCE_GROUP=g\nAZURE_CLOUD_NAME=AzurePublicCloud",
			env: map[string]string{
				"AZURE_CLIENT_ID": "app", "AZURE_TENANT_ID": "t", "AZURE_FEDERATED_TOKEN_FILE": federated, "AZURE_AUTHORITY_HOST": "https://login.example/",
			},
			want: map[string]string{
				"AZURE_CLIENT_ID": "app", "AZURE_TENANT_ID": "t", "AZURE_FEDERATED_TOKEN_FILE": federated, "AZURE_AUTHORITY_HOST": "https://login.example/",
			},
			paths: []string{"/var/run/secrets/azure/tokens"},
		},
		{name: "key of the agent", env: map[string]string{"AZURE_ACCOUNT_KEY": "HuSh"}, want: map[string]string{"AZURE_ACCOUNT_KEY": "HuSh"}},
		{name: "managed identity", want: map[string]string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			c.env = tt.env
			l := location("azure", append(tt.config, "storageAccount", "acct")...)
			if tt.content != "" {
				c.withSecret(l, tt.content)
			}
			repo := c.resolve(t, l)
			tt.want["AZURE_ACCOUNT_NAME"] = "acct"
			wantEnv(t, repo, tt.want)
			wantReadPaths(t, repo, tt.paths...)
			if diff := cmp.Diff(len(tt.files), len(repo.Files)); diff != "" {
				t.Errorf("number of Files: %s", diff)
			}
			for name, want := range tt.files {
				if got := repo.Files[name].Reveal(); got != want {
					t.Errorf("file of %s = %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestResolveAzureErrors(t *testing.T) {
	t.Parallel()
	account := []string{"storageAccount", "acct"}
	tests := []struct {
		name    string
		content string
		config  []string
		wraps   error
		says    []string
	}{
		{"no account", "AZURE_STORAGE_KEY=HuSh", nil, repository.ErrMisconfigured, []string{"storageAccount"}},
		{"no such key", "AZURE_STORAGE_KEY=HuSh", append(account, "storageAccountKeyEnvVar", "MY_KEY"), repository.ErrMisconfigured, []string{`"MY_KEY"`, "velero/own"}},
		{"bad useAAD", "AZURE_STORAGE_KEY=HuSh", append(account, "useAAD", "yes"), repository.ErrMisconfigured, []string{"useAAD", `"yes"`}},
		{"unknown cloud", "AZURE_CLOUD_NAME=HuSh", account, repository.ErrMisconfigured, []string{"AZURE_CLOUD_NAME"}},
		{"not dotenv", "A=1\n\nHuSh\n", account, repository.ErrMisconfigured, []string{"line 3", "velero/own"}},
		{"user name and password", "AZURE_USERNAME=HuSh\nAZURE_PASSWORD=HuSh", account, uploader.ErrUnsupported, []string{"AZURE_USERNAME"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			c.wantError(t, c.withSecret(location("azure", tt.config...), tt.content), shop, tt.wraps, tt.says...)
		})
	}
}
