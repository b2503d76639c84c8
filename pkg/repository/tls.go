package repository

import (
	"context"
	"crypto/x509"
	"strconv"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
)

// caCert is the bundle to trust besides the system's. The reference wins, as in Velero since 1.18
// (docs/contracts/velero-node-agent.md 3).
func (r *Resolver) caCert(ctx context.Context, location *velerov1.BackupStorageLocation) ([]byte, error) {
	storage := location.Spec.ObjectStorage
	if storage == nil {
		return nil, nil
	}
	bundle, from := storage.CACert, "spec.objectStorage.caCert"
	if ref := storage.CACertRef; ref != nil {
		key := secretKey{
			namespace: location.Namespace, name: ref.Name, key: ref.Key,
			purpose: "the storage's CA certificate, as spec.objectStorage.caCertRef says",
		}
		var err error
		if bundle, err = r.secretValue(ctx, key); err != nil {
			return nil, err
		}
		from = key.String()
	}
	if len(bundle) > 0 && !x509.NewCertPool().AppendCertsFromPEM(bundle) {
		return nil, misconfigured("%s has no certificate in PEM format", from)
	}
	return bundle, nil
}

// insecureSkipTLSVerify is strict where Velero takes a misspelled value for false: it would go unnoticed until the
// certificate is refused.
func insecureSkipTLSVerify(config map[string]string) (bool, error) {
	return boolConfig(config, "insecureSkipTLSVerify")
}

func boolConfig(config map[string]string, name string) (bool, error) {
	value := config[name]
	if value == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(value)
	if err != nil {
		return false, misconfigured("config %s is %q, want true or false", name, value)
	}
	return b, nil
}
