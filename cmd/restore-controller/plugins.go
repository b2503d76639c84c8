package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/plimsoll-io/plimsoll/pkg/pluginendpoint"
)

// pluginEndpoint says where plugins that are no Kubernetes clients report.
type pluginEndpoint struct {
	address  string
	certDir  string
	audience string
}

func (p *pluginEndpoint) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.address, "plugin-endpoint", "", "where volume snapshotter plugins that are no Kubernetes clients report over HTTP, such as :8087; empty: nowhere")
	f.StringVar(&p.certDir, "plugin-endpoint-cert-dir", "", "a directory with tls.crt and tls.key for --plugin-endpoint, which it needs unless that is an address of this host alone, such as 127.0.0.1:8087")
	f.StringVar(&p.audience, "plugin-endpoint-audience", "", "the audience that the tokens of these plugins must be for; empty: that of the API server")
}

func (p *pluginEndpoint) validate() error {
	if p.address == "" {
		if p.certDir+p.audience != "" {
			return errors.New("--plugin-endpoint-cert-dir and --plugin-endpoint-audience go with --plugin-endpoint")
		}
		return nil
	}
	host, _, err := net.SplitHostPort(p.address)
	if err != nil {
		return fmt.Errorf("--plugin-endpoint: %w", err)
	}
	if p.certDir == "" && !isLoopback(host) {
		return fmt.Errorf("--plugin-endpoint=%s needs --plugin-endpoint-cert-dir: tokens must not travel in clear text", p.address)
	}
	return nil
}

func isLoopback(host string) bool {
	address, err := netip.ParseAddr(host)
	return err == nil && address.IsLoopback()
}

// serve has the manager serve the endpoint, whether it leads or not.
func (p *pluginEndpoint) serve(ctx context.Context, mgr ctrl.Manager, namespace string, log *slog.Logger) error {
	if p.address == "" {
		return nil
	}
	cfg := rest.CopyConfig(mgr.GetConfig())
	cfg.QPS, cfg.Burst = 100, 200 // 1000 operations that each report every 10 seconds
	api, err := client.New(cfg, client.Options{Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient()})
	if err != nil {
		return err
	}
	endpoint := pluginendpoint.New(pluginendpoint.Config{Namespace: namespace, Client: api, Audience: p.audience, Logger: log})
	if err := endpoint.Watch(ctx, mgr.GetCache()); meta.IsNoMatchError(err) {
		log.Warn("The CRDs of plimsoll.io are not installed: plugins cannot report", "error", err)
	} else if err != nil {
		return err
	}
	if err := mgr.Add(endpoint); err != nil {
		return fmt.Errorf("add the endpoint for plugins: %w", err)
	}
	listener, err := p.listen(ctx, mgr)
	if err != nil {
		return err
	}
	return mgr.Add(&manager.Server{
		Name: "plugin-endpoint", Listener: listener, ShutdownTimeout: new(10 * time.Second),
		Server: &http.Server{
			Handler: endpoint, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
			MaxHeaderBytes: 32 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
	})
}

// listen opens the port, and has the manager watch the certificate, which may be renewed.
func (p *pluginEndpoint) listen(ctx context.Context, mgr ctrl.Manager) (net.Listener, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if p.certDir != "" {
		certificate, err := certwatcher.New(filepath.Join(p.certDir, "tls.crt"), filepath.Join(p.certDir, "tls.key"))
		if err != nil {
			return nil, fmt.Errorf("certificate of --plugin-endpoint-cert-dir: %w", err)
		}
		if err := mgr.Add(certificate); err != nil {
			return nil, fmt.Errorf("watch the certificate of --plugin-endpoint-cert-dir: %w", err)
		}
		config.GetCertificate = certificate.GetCertificate
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", p.address)
	if err != nil {
		return nil, fmt.Errorf("--plugin-endpoint: %w", err)
	}
	if p.certDir != "" {
		listener = tls.NewListener(listener, config)
	}
	return listener, nil
}
