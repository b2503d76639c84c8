package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// TestOutputSteersNoTerminal writes what volumes may be called, and reads it again.
func TestOutputSteersNoTerminal(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"größe & <b>", "two\nlines", "\x1b[2J\x1b]0;title\a", "\u009b31m", "gpj.\u202eexe", "a\u200bb\ufeff", "\U000e0041", "a\u2028b", "\x7f",
	} {
		value := map[string]string{"name": name, "key " + name: "x"}
		for _, format := range []string{formatJSON, formatYAML} {
			var text bytes.Buffer
			if err := (&output{format}).print(&text, value, nil); err != nil {
				t.Fatal(err)
			}
			if i := strings.IndexFunc(text.String(), hidden); i >= 0 {
				t.Errorf("%s of %q has %q", format, name, text.String()[i:])
			}
			read := yaml.Unmarshal
			if format == formatJSON {
				read = func(text []byte, into any, _ ...yaml.JSONOpt) error { return json.Unmarshal(text, into) }
			}
			var got map[string]string
			if err := read(text.Bytes(), &got); err != nil {
				t.Errorf("%s of %q: %v: %s", format, name, err, text.String())
			}
			if diff := cmp.Diff(value, got); diff != "" {
				t.Errorf("%s of %q: %s", format, name, diff)
			}
		}
	}
}
