package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// writeCertificates writes the certificate authorities that Mozilla trusts for servers, as PEM. They come from a Go
// module, so that go.sum fixes them, which the bundle of the machine that builds would not be.
//
// An authority that is trusted only for certificates up to some day is left out: a PEM file cannot say so, and it is on
// its way out.
func writeCertificates(path string) error {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return fmt.Errorf("encode certificates: %w", err)
		}
	}
	return os.WriteFile(path, text.Bytes(), 0o644) //nolint:gosec // G306: certificates are for everybody
}
