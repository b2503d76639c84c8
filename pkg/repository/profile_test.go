package repository

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseProfiles(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		data string
		want map[string]profile
	}{
		"empty":                  {"", map[string]profile{}},
		"plain":                  {"[a]\nk=v\nl = w\n[b]\nk=x", map[string]profile{"a": {"k": "v", "l": "w"}, "b": {"k": "x"}}},
		"carriage returns":       {"[a]\r\nk=v\r\n", map[string]profile{"a": {"k": "v"}}},
		"byte order mark":        {"\ufeff[a]\nk=v", map[string]profile{"a": {"k": "v"}}},
		"comments":               {"# x\n[a] # x\n; k=u\nk=v # x\nl=w ; x\nm=#\n", map[string]profile{"a": {"k": "v", "l": "w", "m": ""}}},
		"marks inside values":    {"[a]\nk=v#x;y", map[string]profile{"a": {"k": "v#x;y"}}},
		"quotes":                 {"[a]\nk=\"v # x\"\nl='w'\nm=\"", map[string]profile{"a": {"k": "v # x", "l": "w", "m": `"`}}},
		"equals signs in values": {"[a]\nk=v+/==", map[string]profile{"a": {"k": "v+/=="}}},
		"keys in capitals":       {"[a]\nAWS_ACCESS_KEY_ID=v", map[string]profile{"a": {"aws_access_key_id": "v"}}},
		"all indented":           {"  [a]\n  k=v\n  l=w", map[string]profile{"a": {"k": "v", "l": "w"}}},
		"nested settings":        {"[a]\ns3 =\n  k = u\nk = v", map[string]profile{"a": {"s3": "", "k": "v"}}},
		"config file":            {"[profile a]\nk=v\n[profile b c]\nk=w", map[string]profile{"a": {"k": "v"}, "b c": {"k": "w"}}},
		"credentials before config": {
			"[profile a]\nk=u\n[a]\nk=v", map[string]profile{"a": {"k": "v"}},
		},
		"sections merged":   {"[a]\nk=u\nl=w\n[b]\n[a]\nk=v", map[string]profile{"a": {"k": "v", "l": "w"}, "b": {}}},
		"profile by name":   {"[profile]\nk=v", map[string]profile{"profile": {"k": "v"}}},
		"outside a section": {"k=v\n[a\nl=w", map[string]profile{}},
		"no properties":     {"[a]\nx\n=y\n", map[string]profile{"a": {}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, parseProfiles([]byte(tt.data))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func FuzzParseProfiles(f *testing.F) {
	f.Add("[default]\naws_access_key_id = ID\naws_secret_access_key = \"s\" # c\n", "k", "v")
	f.Add("\ufeff[profile a]\r\ns3 =\r\n  k = v\r\n", "aws_session_token", "a+/=")
	f.Add("[a\n]\n=\n'", "k", "'")
	f.Fuzz(func(t *testing.T, data, key, value string) {
		for name, p := range parseProfiles([]byte(data)) {
			for k, v := range p {
				if k == "" || strings.ContainsAny(name+k+v, "\n") || k != strings.TrimSpace(k) {
					t.Fatalf("profile %q has %q = %q", name, k, v)
				}
			}
		}
		// What is written plainly after any other content is read back.
		if !plain(key) || !plain(value) {
			return
		}
		written := data + "\n[zzz-last]\n" + key + " = " + value + "\n"
		if got := parseProfiles([]byte(written))["zzz-last"][strings.ToLower(key)]; got != value {
			t.Fatalf("%q = %q, want %q", key, got, value)
		}
	})
}

// plain says that a text has only characters that keys and secrets consist of.
func plain(text string) bool {
	return text != "" && strings.Trim(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+/") == ""
}
