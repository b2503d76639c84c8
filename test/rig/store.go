package rig

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-io/plimsoll/test/resticrepo"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

// Password is that of all repositories.
const Password = resticrepo.Password

// Store is where a case's repositories are: a directory, or a bucket behind a proxy.
type Store struct {
	Dir   string         // where the repositories' files are in the end, in both cases
	Proxy *testenv.Proxy // nil for a directory
}

// UseDirectory makes the location of a directory.
func (f *Fixture) UseDirectory(dir string) {
	f.T.Helper()
	f.Store = Store{Dir: dir}
	location := f.DirectoryLocation(velero.Location, dir)
	delete(location.Spec.Config, "resticRepoPrefix") // so that it is derived
	f.Create(location)
}

// UseBucket makes the location of a bucket, which the agent reaches through the store's proxy.
func (f *Fixture) UseBucket(server *s3.Server, bucket string) {
	f.T.Helper()
	proxy, certificate := newStoreProxy(f.T, server)
	f.Store = Store{Dir: server.Dir(bucket), Proxy: proxy}
	location := f.BucketLocation(velero.Location, server, bucket)
	location.Spec.Provider = "velero.io/aws"
	location.Spec.Config["s3Url"], location.Spec.ObjectStorage.CACert = "https://"+proxy.Address, certificate
	f.Create(location)
}

// newStoreProxy starts a proxy before an S3 server, and returns it with its certificate. It speaks TLS both ways, since
// it has to understand the requests, and leaves the Host as it is, since that is signed.
func newStoreProxy(tb testing.TB, server *s3.Server) (p *testenv.Proxy, certificate []byte) {
	tb.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(server.CACert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 20}
	tb.Cleanup(transport.CloseIdleConnections)
	target := &url.URL{Scheme: "https", Host: server.Endpoint}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host
		},
		Transport:    transport,
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	// httptest has a certificate for 127.0.0.1.
	borrowed := httptest.NewTLSServer(http.NotFoundHandler())
	defer borrowed.Close()
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: borrowed.Certificate().Raw})
	return testenv.NewProxy(tb, forward, &tls.Config{Certificates: borrowed.TLS.Certificates}), certificate
}

// IsPut reports whether a store's client stores something.
func IsPut(r *http.Request) bool { return r.Method == http.MethodPut || r.Method == http.MethodPost }

// Unavailable is the answer of an S3 server that is busy.
func Unavailable(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = io.WriteString(w, "<Error><Code>SlowDown</Code><Message>made by the fault suite</Message></Error>")
}

// Size returns how many bytes of files lie below a directory, 0 if it does not exist.
func Size(tb testing.TB, dir string) int64 {
	tb.Helper()
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return ignoreMissing(err)
		}
		info, err := entry.Info()
		if err == nil {
			sum += info.Size()
		}
		return ignoreMissing(err)
	})
	if err != nil {
		tb.Fatal(err)
	}
	return sum
}

// ignoreMissing drops the error of a file that has gone meanwhile.
func ignoreMissing(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
