package v1alpha1

import (
	"strings"
	"testing"

	"github.com/vmware-tanzu/velero/pkg/label"
	"k8s.io/apimachinery/pkg/util/validation"
)

func TestLabelValue(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                      "",
		"nightly":               "nightly",
		"example.io/disks":      "example.io_disks",
		"/subscriptions/a/Snap": "subscriptions_a_Snap",
		"-x-":                   "x",
		"über":                  "ber",
		strings.Repeat("a", 63): strings.Repeat("a", 63),
	} {
		if got := LabelValue(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestLabelValueIsVeleros compares with Velero's own rule, by which Velero and people select.
func TestLabelValueIsVeleros(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nightly", strings.Repeat("b", 63), strings.Repeat("c", 64), "daily." + strings.Repeat("d-1", 60)} {
		if got, want := LabelValue(name), label.GetValidName(name); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func FuzzLabelValue(f *testing.F) {
	f.Add("arn:aws:ec2:eu-west-1::snapshot/snap-0123456789abcdef0" + strings.Repeat("/x", 40))
	f.Fuzz(func(t *testing.T, text string) {
		if problems := validation.IsValidLabelValue(LabelValue(text)); len(problems) > 0 {
			t.Errorf("%q gives %q: %v", text, LabelValue(text), problems)
		}
	})
}
