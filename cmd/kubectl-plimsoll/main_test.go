package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestErrorsSteerNoTerminal: an error repeats what somebody else has written.
func TestErrorsSteerNoTerminal(t *testing.T) {
	t.Parallel()
	var out, errOut bytes.Buffer
	code := run(t.Context(), strings.NewReader(""), &out, &errOut, []string{"describe", "\x1b]0;owned\a", "x"})
	if said := errOut.String(); code != 2 || !strings.Contains(said, `\x1b]0;owned\a`) || strings.ContainsAny(said, "\x1b\a") || !strings.HasSuffix(said, "\n") {
		t.Errorf("exit code %d, said %q", code, said)
	}
}
