package repository

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// azure gives the worker the storage account and its access key, or else an Entra (AAD) identity for restic to log in
// with, from 0.16 on: a service principal of the credentials file, the agent's workload identity, or the node's managed
// identity. Such an identity needs the role "Storage Blob Data Contributor" on the container: unlike Velero, this package
// does not trade an identity's rights on the account for the account's access key.
func (r *Resolver) azure(ctx context.Context, location *velerov1.BackupStorageLocation, env environment) error {
	config := location.Spec.Config
	file, err := r.credentialsFile(ctx, location, "AZURE_CREDENTIALS_FILE")
	if err != nil {
		return err
	}
	creds, err := parseDotenv(file.data)
	if err != nil {
		return misconfigured("%s: %w", file.from, err)
	}
	env.pass("AZURE_ACCOUNT_NAME")
	env.set("AZURE_ACCOUNT_NAME", config["storageAccount"])
	if env.repo.Env["AZURE_ACCOUNT_NAME"] == "" {
		return misconfigured("config storageAccount is empty")
	}
	if err := azureCloud(config, creds, env); err != nil {
		return err
	}
	key, err := azureKey(config, creds, file.from)
	if err != nil {
		return err
	}
	if key != "" {
		env.set("AZURE_ACCOUNT_KEY", key)
		return nil
	}
	if file.shared && len(creds) == 0 {
		env.pass("AZURE_ACCOUNT_KEY", "AZURE_ACCOUNT_SAS")
	}
	return azureIdentity(creds, file.from, env)
}

// azureKey is the account's access key, or "" to log in with an identity. The plugin's documentation calls the key
// AZURE_STORAGE_ACCOUNT_ACCESS_KEY and needs config storageAccountKeyEnvVar to say so; here it is found without.
func azureKey(config, creds map[string]string, from string) (string, error) {
	if name := config["storageAccountKeyEnvVar"]; name != "" {
		if creds[name] == "" {
			return "", misconfigured("%s has no value %q, the storage account's access key as config storageAccountKeyEnvVar says", from, name)
		}
		return creds[name], nil
	}
	useAAD, err := boolConfig(config, "useAAD")
	if err != nil || useAAD {
		return "", err
	}
	if key := creds["AZURE_STORAGE_ACCOUNT_ACCESS_KEY"]; key != "" {
		return key, nil
	}
	return creds["AZURE_STORAGE_KEY"], nil
}

// azureIdentity gives the worker an identity to log in with.
func azureIdentity(creds map[string]string, from string, env environment) error {
	if creds["AZURE_USERNAME"] != "" && creds["AZURE_CLIENT_SECRET"] == "" {
		return fmt.Errorf("%s: log-in with AZURE_USERNAME: %w; give the storage account's access key or AZURE_CLIENT_SECRET",
			from, uploader.ErrUnsupported)
	}
	env.pass("AZURE_CLIENT_ID", "AZURE_TENANT_ID")
	env.passFile("AZURE_FEDERATED_TOKEN_FILE")
	for _, name := range []string{
		"AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET", "AZURE_CLIENT_CERTIFICATE_PASSWORD",
		"AZURE_CLIENT_SEND_CERTIFICATE_CHAIN", "AZURE_ADDITIONALLY_ALLOWED_TENANTS",
	} {
		env.set(name, creds[name])
	}
	env.setFile("AZURE_CLIENT_CERTIFICATE_PATH", creds["AZURE_CLIENT_CERTIFICATE_PATH"])
	if certificate := creds["AZURE_CLIENT_CERTIFICATE"]; certificate != "" {
		delete(env.repo.Env, "AZURE_CLIENT_CERTIFICATE_PATH")
		env.repo.Files["AZURE_CLIENT_CERTIFICATE_PATH"] = uploader.Secret(certificate)
	}
	return nil
}

// azureCloud gives the worker the names of a cloud other than the public one, as Velero's Azure code lists them.
func azureCloud(config, creds map[string]string, env environment) error {
	env.pass("AZURE_ENDPOINT_SUFFIX", "AZURE_AUTHORITY_HOST")
	switch name := creds["AZURE_CLOUD_NAME"]; strings.ToUpper(name) {
	case "", "AZURECLOUD", "AZUREPUBLICCLOUD":
	case "AZURECHINACLOUD":
		env.set("AZURE_ENDPOINT_SUFFIX", "core.chinacloudapi.cn")
		env.set("AZURE_AUTHORITY_HOST", "https://login.chinacloudapi.cn/")
	case "AZUREUSGOVERNMENT", "AZUREUSGOVERNMENTCLOUD":
		env.set("AZURE_ENDPOINT_SUFFIX", "core.usgovcloudapi.net")
		env.set("AZURE_AUTHORITY_HOST", "https://login.microsoftonline.us/")
	default:
		// A value of a secret file is not shown, however harmless its name.
		return misconfigured("AZURE_CLOUD_NAME is none of AzurePublicCloud, AzureChinaCloud, AzureUSGovernment")
	}
	env.set("AZURE_AUTHORITY_HOST", config["activeDirectoryAuthorityURI"])
	env.set("AZURE_ENDPOINT_SUFFIX", azureSuffix(config["storageAccountURI"]))
	return nil
}

// azureSuffix is the part of an account's URI that restic lets one choose: https://ACCOUNT.blob.SUFFIX. For a URI of
// another form it is "", and restic uses the account's default address, as under Velero.
func azureSuffix(accountURI string) string {
	u, err := url.Parse(accountURI)
	if err != nil || u.Scheme != "https" || u.Port() != "" {
		return ""
	}
	_, service, _ := strings.Cut(u.Hostname(), ".")
	suffix, ok := strings.CutPrefix(service, "blob.")
	if !ok {
		return ""
	}
	return suffix
}
