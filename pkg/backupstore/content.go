package backupstore

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"regexp"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// maxDocument is the largest JSON document that is read, unpacked, in bytes. The largest of them, the resource list, takes
// about 100 bytes for each item.
const maxDocument = 256 << 20

// maxDecodedDocument is how much memory a document may take when it is decoded, by and large. The records of a backup of ten
// thousand volumes take a fifth of that.
const maxDecodedDocument = 512 << 20

// Object is a Kubernetes object as a backup's file holds it.
type Object[T any] struct {
	Typed T
	// Content is all of it, with the fields that this version of Velero's types does not know.
	Content unstructured.Unstructured
}

// UnmarshalJSON fills in both.
func (o *Object[T]) UnmarshalJSON(data []byte) error {
	if err := json.Unmarshal(data, &o.Typed); err != nil {
		return err
	}
	o.Content.Object = nil
	return utiljson.Unmarshal(data, &o.Content.Object)
}

// damaged returns the error for a file that is not as Velero writes it.
func damaged(key, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %w", key, ErrDamaged, fmt.Errorf(format, args...))
}

// document reads a file of JSON. An empty file, as well as null, leaves value as it is.
func (d directory) document(ctx context.Context, file string, packed bool, value any) error {
	key := d.key(file)
	raw, err := d.store.bucket.open(ctx, key)
	if err != nil {
		return err
	}
	defer raw.Close()
	var content io.Reader = raw
	if packed {
		if content, err = unpack(key, raw); err != nil {
			return err
		}
	}
	return decode(key, content, value)
}

func decode(key string, content io.Reader, value any) error {
	data, err := io.ReadAll(io.LimitReader(content, maxDocument+1))
	if err != nil {
		return err
	}
	if len(data) > maxDocument {
		return fmt.Errorf("%s has more than %d bytes: %w", key, maxDocument, ErrTooLarge)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	if size := decodedBytes(data); size > maxDecodedDocument {
		return fmt.Errorf("%s: decoded, its %d bytes take about %d MiB of memory, the most is %d: %w", key, len(data), size>>20, maxDecodedDocument>>20, ErrTooLarge)
	}
	if err := json.Unmarshal(data, value); err != nil {
		return damaged(key, "not the JSON that it should be: %w", err)
	}
	return nil
}

// unpack reads through gzip. An empty file is empty content. The reader's errors wrap ErrDamaged where it is the content
// that is wrong, and not the way to it.
func unpack(key string, raw io.Reader) (io.Reader, error) {
	source := &source{r: raw}
	plain, err := unframe(bufio.NewReader(source))
	if err != nil {
		return nil, source.fault(key, err)
	}
	packed, err := gzip.NewReader(plain)
	if errors.Is(err, io.EOF) {
		return bytes.NewReader(nil), nil
	}
	if err != nil {
		return nil, source.fault(key, err)
	}
	return unpacked{r: packed, fault: func(err error) error { return source.fault(key, err) }}, nil
}

// chunkHeader is how a file begins that Velero's plugin for AWS 1.14.2 wrote, with checksumAlgorithm "", to a server that
// does not know the encoding aws-chunked: the server stored the encoding along with the content
// (github.com/velero-io/velero issue 9951).
var chunkHeader = regexp.MustCompile(`^[0-9a-fA-F]{1,8}(;[^\r\n]*)?\r\n`)

// unframe takes such an encoding off.
func unframe(r *bufio.Reader) (io.Reader, error) {
	const longestHeader = 128
	begin, err := r.Peek(longestHeader)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if chunkHeader.Match(begin) {
		return httputil.NewChunkedReader(r), nil
	}
	return r, nil
}

// source remembers an error of the storage, to tell it from one of the content.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

func (s *source) fault(key string, err error) error {
	switch {
	case s.err != nil:
		return s.err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return damaged(key, "it is cut off: %w", err)
	default:
		return damaged(key, "%w", err)
	}
}

// unpacked names the file in the errors of a gzip reader.
type unpacked struct {
	r     io.Reader
	fault func(error) error
}

func (u unpacked) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = u.fault(err)
	}
	return n, err
}
