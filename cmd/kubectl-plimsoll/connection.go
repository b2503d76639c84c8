package main

import (
	"cmp"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// connection says which cluster, as whom, and in which namespace Velero's objects are. Its flags are kubectl's.
type connection struct {
	rules     clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
	// namespace has Velero's objects. It is not that of the kubeconfig's context: few people work in the namespace of
	// their backups.
	namespace string
}

func (c *connection) addFlags(f *pflag.FlagSet) {
	c.rules = *clientcmd.NewDefaultClientConfigLoadingRules()
	f.StringVar(&c.rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "path to the kubeconfig file to use")
	flags := clientcmd.RecommendedConfigOverrideFlags("")
	flags.ContextOverrideFlags.Namespace = clientcmd.FlagInfo{} // ours has another default
	clientcmd.BindOverrideFlags(&c.overrides, f, flags)
	f.StringVarP(&c.namespace, "namespace", "n", cmp.Or(os.Getenv("VELERO_NAMESPACE"), "velero"),
		"namespace of the Backups and Restores, also from VELERO_NAMESPACE")
}

// config is for requests at a person's pace: nothing holds them back on this side.
func (c *connection) config() (*rest.Config, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&c.rules, &c.overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	config.QPS = -1
	config.UserAgent = "kubectl-plimsoll/" + version
	return config, nil
}

// newScheme knows the kinds that this program reads and writes.
func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, velerov1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("prepare the client: %w", err)
		}
	}
	return scheme, nil
}

// client returns a client that asks the API server itself each time.
func (c *connection) client() (client.Client, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to the cluster: %w", err)
	}
	return api, nil
}
