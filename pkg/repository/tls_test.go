package repository_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
)

func certificate(t *testing.T, serial int64) []byte {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Unix(1<<32, 0)}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestResolveCACert(t *testing.T) {
	t.Parallel()
	inline, referenced := certificate(t, 1), certificate(t, 2)
	c := newCluster()
	c.secrets["ca"] = map[string][]byte{"ca.crt": referenced}

	l := location("gcp")
	if got := c.resolve(t, l).CACert; got != nil {
		t.Errorf("CACert = %q, want none", got)
	}
	l.Spec.ObjectStorage.CACert = inline
	if got := c.resolve(t, l).CACert; string(got) != string(inline) {
		t.Errorf("CACert = %q, want caCert", got)
	}
	l.Spec.ObjectStorage.CACertRef = selector("ca", "ca.crt")
	if got := c.resolve(t, l).CACert; string(got) != string(referenced) {
		t.Errorf("CACert = %q, want that of caCertRef", got)
	}
}

func TestResolveCACertErrors(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		storage velerov1.ObjectStorageLocation
		says    string
	}{
		"not PEM":           {velerov1.ObjectStorageLocation{CACert: []byte(marker)}, "spec.objectStorage.caCert has no certificate"},
		"reference not PEM": {velerov1.ObjectStorageLocation{CACertRef: selector("ca", "bad")}, `key "bad" of Secret velero/ca has no certificate`},
		"no such key":       {velerov1.ObjectStorageLocation{CACertRef: selector("ca", "nope")}, `Secret velero/ca has no key "nope"`},
		"no such secret":    {velerov1.ObjectStorageLocation{CACertRef: selector("nope", "k")}, "Secret velero/nope does not exist"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster()
			c.secrets["ca"] = map[string][]byte{"bad": []byte(marker)}
			l := location("gcp")
			l.Spec.ObjectStorage = &tt.storage
			l.Spec.ObjectStorage.Bucket = "bucket"
			c.wantError(t, l, shop, repository.ErrMisconfigured, tt.says)
		})
	}
}

func TestResolveInsecureSkipTLSVerify(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{"": false, "false": false, "0": false, "true": true, "True": true, "1": true} {
		if got := newCluster().resolve(t, location("gcp", "insecureSkipTLSVerify", value)).InsecureSkipTLSVerify; got != want {
			t.Errorf("InsecureSkipTLSVerify = %v for %q", got, value)
		}
	}
	newCluster().wantError(t, location("gcp", "insecureSkipTLSVerify", "yes"), shop, repository.ErrMisconfigured,
		"insecureSkipTLSVerify", `"yes"`, "true or false")
	if _, err := newCluster().resolver().Resolve(t.Context(), location("gcp", "insecureSkipTLSVerify", " true"), shop); err == nil ||
		!strings.Contains(err.Error(), `" true"`) {
		t.Errorf("a stray space is not shown: %v", err)
	}
}
