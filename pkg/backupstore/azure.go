package backupstore

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	azurecloud "github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob/azureblob"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
)

// openAzure makes the client from the account's key, a shared access signature or an identity, whichever package
// repository found. URLs can be signed with the key only.
func (c *cloud) openAzure(ctx context.Context, b repository.Bucket, config map[string]string, transport *http.Transport) error {
	env := environment(b.Env)
	address, err := azureContainer(env, config, b.Storage.Bucket)
	if err != nil {
		return err
	}
	options := azcore.ClientOptions{Transport: &http.Client{Transport: transport}}
	client, err := azureClient(b, address, options)
	if err != nil {
		return misconfigured("Azure credentials: %s", c.hide(err.Error()))
	}
	if c.blobs, err = azureblob.OpenBucket(ctx, client, nil); err != nil {
		return err
	}
	if env.get("AZURE_ACCOUNT_KEY") == "" {
		return nil
	}
	c.signer = c.signedURL
	return nil
}

// azureContainer is the container's URL.
func azureContainer(env environment, config map[string]string, bucket string) (string, error) {
	account := config["storageAccountURI"]
	switch {
	case account == "":
		suffix := env.get("AZURE_ENDPOINT_SUFFIX")
		if suffix == "" {
			suffix = "core.windows.net"
		}
		account = "https://" + env.get("AZURE_ACCOUNT_NAME") + ".blob." + suffix
	case !strings.Contains(account, "://"):
		account = "https://" + account
	}
	u, err := url.Parse(account)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", misconfigured("config storageAccountURI %q is no URL such as https://account.blob.core.windows.net", config["storageAccountURI"])
	}
	return u.JoinPath(bucket).String(), nil
}

func azureClient(b repository.Bucket, address string, options azcore.ClientOptions) (*container.Client, error) {
	env := environment(b.Env)
	containerOptions := &container.ClientOptions{ClientOptions: options}
	if key := env.get("AZURE_ACCOUNT_KEY"); key != "" {
		shared, err := container.NewSharedKeyCredential(env.get("AZURE_ACCOUNT_NAME"), key)
		if err != nil {
			return nil, err
		}
		return container.NewClientWithSharedKeyCredential(address, shared, containerOptions)
	}
	if signature := env.get("AZURE_ACCOUNT_SAS"); signature != "" {
		return container.NewClientWithNoCredential(address+"?"+strings.TrimPrefix(signature, "?"), containerOptions)
	}
	if host := env.get("AZURE_AUTHORITY_HOST"); host != "" {
		options.Cloud = azurecloud.AzurePublic
		options.Cloud.ActiveDirectoryAuthorityHost = host
	}
	identity, err := azureIdentity(b, options)
	if err != nil {
		return nil, err
	}
	return container.NewClient(address, identity, containerOptions)
}

// azureIdentity is a service principal, a workload identity or, with neither, the node's managed identity.
func azureIdentity(b repository.Bucket, options policy.ClientOptions) (azcore.TokenCredential, error) {
	env := environment(b.Env)
	tenant, client := env.get("AZURE_TENANT_ID"), env.get("AZURE_CLIENT_ID")
	var tenants []string
	if list := env.get("AZURE_ADDITIONALLY_ALLOWED_TENANTS"); list != "" {
		tenants = strings.Split(list, ";")
	}
	certificate, err := azureCertificate(b)
	if err != nil {
		return nil, err
	}
	switch {
	case env.get("AZURE_CLIENT_SECRET") != "":
		return azidentity.NewClientSecretCredential(tenant, client, env.get("AZURE_CLIENT_SECRET"),
			&azidentity.ClientSecretCredentialOptions{ClientOptions: options, AdditionallyAllowedTenants: tenants})
	case len(certificate) > 0:
		certificates, key, err := azidentity.ParseCertificates(certificate, []byte(env.get("AZURE_CLIENT_CERTIFICATE_PASSWORD")))
		if err != nil {
			return nil, err
		}
		chain := env.get("AZURE_CLIENT_SEND_CERTIFICATE_CHAIN")
		return azidentity.NewClientCertificateCredential(tenant, client, certificates, key, &azidentity.ClientCertificateCredentialOptions{
			ClientOptions: options, AdditionallyAllowedTenants: tenants, SendCertificateChain: chain == "1" || strings.EqualFold(chain, "true"),
		})
	case env.get("AZURE_FEDERATED_TOKEN_FILE") != "":
		return azidentity.NewWorkloadIdentityCredential(&azidentity.WorkloadIdentityCredentialOptions{
			ClientOptions: options, AdditionallyAllowedTenants: tenants,
			TenantID: tenant, ClientID: client, TokenFilePath: env.get("AZURE_FEDERATED_TOKEN_FILE"),
		})
	default:
		managed := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: options}
		if client != "" {
			managed.ID = azidentity.ClientID(client)
		}
		return azidentity.NewManagedIdentityCredential(managed)
	}
}

// azureCertificate is the service principal's certificate with its key, from the credentials or from a mounted file.
func azureCertificate(b repository.Bucket) ([]byte, error) {
	const variable = "AZURE_CLIENT_CERTIFICATE_PATH"
	if file := environment(b.Env).get(variable); file != "" {
		return os.ReadFile(file)
	}
	return []byte(b.Files[variable].Reveal()), nil
}
