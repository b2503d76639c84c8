package repository

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseDotenv(t *testing.T) {
	t.Parallel()
	data := "\ufeff# comment\r\n\nA=1\r\nexport B = two words \nC: yaml\nD=a=b:c\nE=\"q # \\\"x\\\" \\\\ \\n\" # c\nF='$A \\n'\nG=v#w # c\nH=\nI=\"\nA=last\n"
	want := map[string]string{
		"A": "last", "B": "two words", "C": "yaml", "D": "a=b:c", "E": "q # \"x\" \\ \n", "F": `$A \n`, "G": "v#w", "H": "", "I": `"`,
	}
	got, err := parseDotenv([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestParseDotenvErrors(t *testing.T) {
	t.Parallel()
	for data, want := range map[string]string{"hush": "line 1 ", "A=1\n#\n=hush": "line 3 ", "[default]\nhush=1": "line 1 "} {
		_, err := parseDotenv([]byte(data))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("parse %q: %v, want %q and no content", data, err, want)
		}
	}
}

func FuzzParseDotenv(f *testing.F) {
	f.Add("A=1\nexport B='x'\n# c\nC: \"y\\n\" # c\n", "AZURE_STORAGE_KEY", "a+/")
	f.Add("\ufeffA=\"\\\"", "K", "'")
	f.Add("=\n:\nexport \n", "K", "v")
	f.Fuzz(func(t *testing.T, data, key, value string) {
		values, err := parseDotenv([]byte(data))
		if err != nil {
			return
		}
		for k := range values {
			if k != strings.TrimSpace(k) || strings.ContainsAny(k, "\n=:") {
				t.Fatalf("key %q", k)
			}
		}
		if !plain(key) || !plain(value) {
			return
		}
		values, err = parseDotenv([]byte(data + "\n" + key + "=" + value + "\n"))
		if err != nil || values[key] != value {
			t.Fatalf("%q = %q, %v; want %q", key, values[key], err, value)
		}
	})
}
