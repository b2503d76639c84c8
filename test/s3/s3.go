// Package s3 starts a real S3 server, versitygw, for the time of a test.
package s3

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// Server is an S3 server on this machine, reached by TLS with a certificate of its own.
type Server struct {
	Endpoint  string // host and port
	AccessKey string
	SecretKey string
	CACert    []byte // PEM

	root    string
	command []string
	stop    func()
}

// startTimeout is how long a server may take to answer, on a machine that is very busy.
const startTimeout = 5 * time.Minute

// Start starts a server and ends it with the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	dir := tb.TempDir()
	s := &Server{AccessKey: "plimsoll-test", SecretKey: "plimsoll-test-secret", root: filepath.Join(dir, "buckets")}
	sidecar := filepath.Join(dir, "sidecar")
	for _, d := range []string{s.root, sidecar} {
		if err := os.Mkdir(d, 0o700); err != nil {
			tb.Fatal(err)
		}
	}
	s.Endpoint = loopback.ForTest(tb)
	cert, key := s.certify(tb, dir)
	s.command = []string{
		parts.S3Server(tb), "--quiet", "--port", s.Endpoint, "--access", s.AccessKey, "--secret", s.SecretKey, "--cert", cert, "--key", key,
		"posix", "--sidecar", sidecar, s.root,
	}
	s.Run(tb)
	return s
}

// Stop ends the server, as a crash does. Nothing listens at its address until Run.
func (s *Server) Stop() { s.stop() }

// Run starts the server again after Stop, at the same address and with its buckets.
func (s *Server) Run(tb testing.TB) {
	tb.Helper()
	server := exec.CommandContext(context.WithoutCancel(tb.Context()), s.command[0], s.command[1:]...)
	var output bytes.Buffer
	server.Stdout, server.Stderr = &output, &output
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := server.Start(); err != nil {
		tb.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = server.Wait()
		close(ended)
	}()
	s.stop = func() {
		_ = server.Process.Kill()
		<-ended
	}
	tb.Cleanup(s.stop)
	if err := await(tb.Context(), s.Endpoint, ended); err != nil {
		s.stop()
		tb.Fatalf("start versitygw: %v\n%s", err, &output)
	}
}

// Bucket makes a bucket of its own for each call.
func (s *Server) Bucket(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp(s.root, "bucket-") //nolint:usetesting // buckets lie in the server's own directory
	if err != nil {
		tb.Fatal(err)
	}
	return filepath.Base(dir)
}

// Dir is where the server keeps a bucket's objects, each as a file.
func (s *Server) Dir(bucket string) string { return filepath.Join(s.root, bucket) }

// certify makes a certificate for the server.
func (s *Server) certify(tb testing.TB, dir string) (cert, key string) {
	tb.Helper()
	address, err := net.ResolveTCPAddr("tcp4", s.Endpoint)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "versitygw"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{address.IP}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		tb.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	s.CACert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	cert, key = filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key")
	for path, content := range map[string][]byte{
		cert: s.CACert, key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return cert, key
}

// await returns when the server accepts connections.
func await(ctx context.Context, address string, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp4", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ended:
			return errors.New("it has ended")
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}
