package volumeplugin

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNameOf(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]string{
		"snap-0123":               "snap-0123",
		"a.b-c":                   "a.b-c",
		"Snap-0123":               "snap-0123-",
		"a..b":                    "a--b-",
		"arn:aws:ec2::snapshot/x": "arn-aws-ec2--snapshot-x-",
		"東京":                      "",
	} {
		got := NameOf(id)
		if exact := !strings.HasSuffix(want, "-") && want != ""; exact && got != want || !strings.HasPrefix(got, want) {
			t.Errorf("%q: got %q, want %q", id, got, want)
		}
	}
	if NameOf("Snap") == NameOf("snap") || NameOf("a/b") == NameOf("a:b") {
		t.Error("different ids give the same name")
	}
}

func FuzzNames(f *testing.F) {
	f.Add("/subscriptions/AB/resourceGroups/rg/"+strings.Repeat("x", 300), "vol-1")
	f.Add("東京", ".")
	f.Add(strings.Repeat("a.", 120), "-")
	f.Fuzz(func(t *testing.T, id, other string) {
		for _, name := range []string{NameOf(id), nameOfVolume(id, other, id), nameOfRestore(id, other)} {
			// A number may follow it.
			if problems := validation.IsDNS1123Subdomain(name + "-100"); len(problems) > 0 {
				t.Errorf("%q, %q give %q: %v", id, other, name, problems)
			}
		}
	})
}
