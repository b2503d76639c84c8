package backupstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"gocloud.dev/blob"

	"github.com/plimsoll-io/plimsoll/pkg/repository"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

const (
	// responseTimeout is how long a storage may take to begin its answer.
	responseTimeout = 2 * time.Minute
	// openTimeout is how long opening an object, or a page of a list, may take with all that a library tries again: Google's does
	// until its ctx ends.
	openTimeout = 10 * time.Minute
	// stallTimeout is how long a storage may send, or take, nothing of an object. There is no limit on the time for all of it: that
	// depends on its size.
	stallTimeout = 2 * time.Minute
)

// bucket is where objects are. Keys are relative to the location's prefix.
type bucket interface {
	// list gives the objects whose keys begin with prefix, in order of their keys. Unless deep, what lies further down is
	// one entry for each directory, whose key ends in a slash.
	list(ctx context.Context, prefix string, deep bool) iter.Seq2[entry, error]
	open(ctx context.Context, key string) (io.ReadCloser, error)
	// write makes or replaces an object with what fill writes. If fill returns an error, the object stays as it was.
	write(ctx context.Context, key string, fill func(io.Writer) error) error
	remove(ctx context.Context, key string) error
	// url returns an address from which anybody can fetch the object until ttl has passed.
	url(ctx context.Context, key string, ttl time.Duration) (string, error)
	close() error
}

// entry is an object in a list.
type entry struct {
	key  string
	size int64
	tag  string
}

// openBucket makes the client of a location's storage. Nothing is sent yet.
func openBucket(ctx context.Context, b repository.Bucket, config map[string]string) (bucket, error) {
	if dir, ok := b.Local(); ok {
		return openLocal(dir)
	}
	transport, err := newTransport(b.CACert, b.InsecureSkipTLSVerify)
	if err != nil {
		return nil, err
	}
	c := &cloud{
		address: strings.TrimSuffix(b.Address(), "/") + "/",
		hide:    b.Hider(),
		opening: openTimeout,
		stall:   stallTimeout,
		idle:    transport.CloseIdleConnections,
	}
	switch b.Storage.Type {
	case uploader.StorageS3:
		err = c.openS3(ctx, b, config, transport)
	case uploader.StorageAzure:
		err = c.openAzure(ctx, b, config, transport)
	case uploader.StorageGCS:
		err = c.openGCS(ctx, b, config, transport)
	default:
		err = fmt.Errorf("storage %q: %w", b.Storage.Type, uploader.ErrUnsupported)
	}
	if err != nil {
		return nil, err
	}
	if b.Storage.Prefix != "" {
		c.blobs = blob.PrefixedBucket(c.blobs, b.Storage.Prefix)
	}
	return c, nil
}

// newTransport trusts the system's certificates and caCert.
func newTransport(caCert []byte, insecure bool) (*http.Transport, error) {
	transport, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, fmt.Errorf("default HTTP transport is a %T", http.DefaultTransport)
	}
	transport = transport.Clone()
	transport.ResponseHeaderTimeout = responseTimeout
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return uploadConn{Conn: conn}, nil
	}
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: insecure} //nolint:gosec // G402: the location's insecureSkipTLSVerify
	if len(caCert) == 0 {
		return transport, nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("read the system's certificates: %w", err)
	}
	roots.AppendCertsFromPEM(caCert)
	transport.TLSClientConfig.RootCAs = roots
	return transport, nil
}

// uploadConn fails a write of which the other side takes nothing for stallTimeout: http.Transport counts only from when all of a
// request is sent.
type uploadConn struct{ net.Conn }

func (c uploadConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(stallTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// partSize is how much of an object is sent in one request, in bytes, and thus what writing one takes of memory.
const partSize = 8 << 20

// cloud is a bucket behind a network.
type cloud struct {
	blobs   *blob.Bucket
	address string
	hide    func(string) string
	idle    func()        // closes idle connections
	opening time.Duration // openTimeout, but for tests
	stall   time.Duration // stallTimeout, but for tests
	// beforeWrite is what a provider wants done to the request, or nil.
	beforeWrite func(as func(any) bool) error
	// signer makes URLs, or is nil if the credentials cannot.
	signer func(ctx context.Context, key string, ttl time.Duration) (string, error)
}

var _ bucket = (*cloud)(nil)

// libraryPrefix is what gocloud.dev puts before an error, and says nothing that this package's errors do not.
var libraryPrefix = regexp.MustCompile(`blob (\(key "[^"]*"\) )?\(code=[A-Za-z]+\): `)

// fault returns an error that names the object. Errors of HTTP clients quote URLs, which may hold an Azure token.
func (c *cloud) fault(ctx context.Context, operation, key string, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, ErrStalled):
		err = cause
	case cause != nil && !errors.Is(err, cause):
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return &faultError{
		operation: operation + " " + c.address + key,
		text:      explain(err, c.hide(libraryPrefix.ReplaceAllString(err.Error(), ""))),
		sentinel:  classify(err),
		err:       err,
	}
}

func (c *cloud) list(ctx context.Context, prefix string, deep bool) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		options := &blob.ListOptions{Prefix: prefix, Delimiter: "/"}
		if deep {
			options.Delimiter = ""
		}
		objects := c.blobs.List(options)
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		for {
			timer := limit(cancel, c.opening)
			object, err := objects.Next(ctx)
			timer.Stop()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(entry{}, c.fault(ctx, "list", prefix, err))
				return
			}
			// Consoles make an object for the directory itself. It counts where all is deleted, and only there.
			if object.Key == prefix && !deep {
				continue
			}
			tag := hex.EncodeToString(object.MD5)
			if len(object.MD5) == 0 {
				tag = fmt.Sprintf("%d-%d", object.Size, object.ModTime.UnixNano())
			}
			if !yield(entry{key: object.Key, size: object.Size, tag: tag}, nil) {
				return
			}
		}
	}
}

func (c *cloud) open(ctx context.Context, key string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	r := cloudReader{cancel: cancel, stall: c.stall, fault: func(err error) error { return c.fault(ctx, "read", key, err) }}
	timer := limit(cancel, c.opening)
	var err error
	r.r, err = c.blobs.NewReader(ctx, key, nil)
	timer.Stop()
	if err != nil {
		err = r.fault(err)
		cancel(nil)
		return nil, err
	}
	return r, nil
}

// cloudReader names the object in the errors of a reader, and gives up, with ErrStalled, when nothing comes for a while.
type cloudReader struct {
	r      io.ReadCloser
	cancel context.CancelCauseFunc // ends what r waits for
	stall  time.Duration
	fault  func(error) error
}

// limit gives up, with ErrStalled, when d has passed, unless the timer is stopped.
func limit(cancel context.CancelCauseFunc, d time.Duration) *time.Timer {
	return time.AfterFunc(d, func() { cancel(fmt.Errorf("nothing has come for %s: %w", d, ErrStalled)) })
}

func (r cloudReader) Read(p []byte) (int, error) {
	timer := limit(r.cancel, r.stall) // for each read: what happens between two of them may take its time
	n, err := r.r.Read(p)
	timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = r.fault(err)
	}
	return n, err
}

func (r cloudReader) Close() error {
	r.cancel(nil)
	return r.r.Close()
}

func (c *cloud) write(ctx context.Context, key string, fill func(io.Writer) error) error {
	// A writer that is closed after its ctx has ended leaves no object.
	writing, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := c.blobs.NewWriter(writing, key, &blob.WriterOptions{
		ContentType: "application/octet-stream", BufferSize: partSize, MaxConcurrency: 1, BeforeWrite: c.beforeWrite,
	})
	if err != nil {
		return c.fault(ctx, "write", key, err)
	}
	if err := fill(w); err != nil {
		cancel()
		// A storage that refuses the object ends the writer, and says why only when it is closed.
		if closeErr := w.Close(); classify(closeErr) != nil {
			err = closeErr
		}
		return c.fault(ctx, "write", key, err)
	}
	if err := w.Close(); err != nil {
		return c.fault(ctx, "write", key, err)
	}
	return nil
}

func (c *cloud) remove(ctx context.Context, key string) error {
	if err := c.blobs.Delete(ctx, key); err != nil {
		return c.fault(ctx, "delete", key, err)
	}
	return nil
}

func (c *cloud) url(ctx context.Context, key string, ttl time.Duration) (string, error) {
	if c.signer == nil {
		return "", fmt.Errorf("%s%s: %w", c.address, key, ErrNoURL)
	}
	signed, err := c.signer(ctx, key, ttl)
	if err != nil {
		return "", c.fault(ctx, "sign a URL for", key, err)
	}
	return signed, nil
}

// signedURL is a signer for buckets whose library can sign by itself.
func (c *cloud) signedURL(ctx context.Context, key string, ttl time.Duration) (string, error) {
	return c.blobs.SignedURL(ctx, key, &blob.SignedURLOptions{Expiry: ttl})
}

func (c *cloud) close() error {
	defer c.idle()
	return c.blobs.Close()
}
