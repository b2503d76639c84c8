package program

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// The paths of kubelet's probes, which send no token.
const (
	AlivePath = "/healthz"
	ReadyPath = "/readyz"
)

// HTTP has the options of a server's port for metrics and probes.
type HTTP struct {
	Address string
	Auth    bool
	CertDir string
	Scrapes *Scrapes // remembers when the metrics were last read; may be nil
}

// AddFlags adds --metrics-address, --metrics-auth and --metrics-cert-dir. paths are what the port serves besides the probes.
func (h *HTTP) AddFlags(cmd *cobra.Command, paths string) {
	f := cmd.Flags()
	f.StringVar(&h.Address, "metrics-address", ":8085", "serve /healthz, /readyz, "+paths+" at this address")
	f.BoolVar(&h.Auth, "metrics-auth", false, "require TLS, and for "+paths+" a token with the right to get these paths")
	f.StringVar(&h.CertDir, "metrics-cert-dir", "", "serve with TLS and the certificate in tls.crt and tls.key of this directory; without it --metrics-auth uses a self-signed certificate")
}

// Options returns the manager's options. A port that requires tokens uses TLS, so that they are not sent in clear text.
func (h *HTTP) Options() (metricsserver.Options, error) {
	options := metricsserver.Options{
		BindAddress:   h.Address,
		SecureServing: h.Auth || h.CertDir != "",
		CertDir:       h.CertDir,
	}
	if h.Auth {
		options.FilterProvider = authorized
	}
	if h.Scrapes != nil {
		options.FilterProvider = h.Scrapes.filter(options.FilterProvider)
	}
	if h.CertDir == "" {
		return options, nil
	}
	// Without these files controller-runtime would silently use a self-signed certificate.
	for _, name := range []string{"tls.crt", "tls.key"} {
		if _, err := os.Stat(filepath.Join(h.CertDir, name)); err != nil {
			return options, fmt.Errorf("certificate of --metrics-cert-dir: %w", err)
		}
	}
	return options, nil
}

// Serve adds endpoints to those of the metrics, behind the same authentication.
func Serve(mgr ctrl.Manager, endpoints map[string]http.Handler) error {
	for path, handler := range endpoints {
		if err := mgr.AddMetricsServerExtraHandler(path, handler); err != nil {
			return fmt.Errorf("serve %s: %w", path, err)
		}
	}
	return nil
}
