package testenv

import (
	"path/filepath"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
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

// WithToken returns the configuration of a client that has a token of a service account.
func (e *Env) WithToken(account client.ObjectKey) *rest.Config {
	e.T.Helper()
	request := &authenticationv1.TokenRequest{}
	object := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: account.Namespace, Name: account.Name}}
	if err := e.Client.SubResource("token").Create(e.Context(), object, request); err != nil {
		e.T.Fatal(err)
	}
	config := rest.AnonymousClientConfig(e.Config)
	config.BearerToken, config.QPS = request.Status.Token, -1
	return config
}

// Kubeconfig writes the kubeconfig of a client for other processes, and returns its path.
func Kubeconfig(tb testing.TB, user *rest.Config) string {
	tb.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: user.Host, CertificateAuthorityData: user.CAData}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: user.CertData, ClientKeyData: user.KeyData, Token: user.BearerToken,
		Impersonate: user.Impersonate.UserName, ImpersonateGroups: user.Impersonate.Groups,
	}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		tb.Fatal(err)
	}
	return path
}
