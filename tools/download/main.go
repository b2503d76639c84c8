// Command download fetches a program that is published as a bzip2 file, and checks its SHA-256:
//
//	download URL SHA256 OUTPUT
//
// A host that does not answer costs 3 s. The output is executable, and appears only when it is complete.
package main

import (
	"compress/bzip2"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

const (
	connectTimeout = 3 * time.Second
	answerTimeout  = 15 * time.Second // until the first byte
	timeout        = 10 * time.Minute
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: download URL SHA256 OUTPUT")
		os.Exit(2)
	}
	if err := download(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// download writes the program that is compressed at url to output. want is the SHA-256 of the compressed file, in hex.
func download(url, want, output string) (err error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: connectTimeout}).DialContext
	transport.ResponseHeaderTimeout = answerTimeout
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody) //nolint:gosec // the Makefile says which
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request) //nolint:gosec // the Makefile says which
	if err != nil {
		return err // it says which URL
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: the server says %s", url, response.Status)
	}
	file, err := os.CreateTemp(filepath.Dir(output), filepath.Base(output)+".")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name())) //nolint:gosec // the Makefile says where
		}
	}()
	hash := sha256.New()
	_, err = io.Copy(file, bzip2.NewReader(io.TeeReader(response.Body, hash)))
	if err == nil {
		_, err = io.Copy(hash, response.Body) // what follows the compressed data
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("save %s: %w", url, err)
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != want {
		return fmt.Errorf("%s has SHA-256 %s instead of %s", url, got, want)
	}
	if err := os.Chmod(file.Name(), 0o755); err != nil { //nolint:gosec // it is a program
		return err
	}
	return os.Rename(file.Name(), output) //nolint:gosec // the Makefile says where
}
