package testenv

import (
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// As returns the configuration of a client with the rights of a service account of the namespace.
func (e *Env) As(serviceAccount string) *rest.Config {
	config := rest.CopyConfig(e.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + e.Namespace + ":" + serviceAccount,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + e.Namespace, "system:authenticated"},
	}
	return config
}

// Kubeconfig writes the kubeconfig of a client for other processes, and returns its path.
func Kubeconfig(tb testing.TB, client *rest.Config) string {
	tb.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: client.Host, CertificateAuthorityData: client.CAData}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: client.CertData, ClientKeyData: client.KeyData, Token: client.BearerToken,
		Impersonate: client.Impersonate.UserName, ImpersonateGroups: client.Impersonate.Groups,
	}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		tb.Fatal(err)
	}
	return path
}
