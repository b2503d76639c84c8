package podvolume

import (
	"testing"
)

func TestParsePartial(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Partial{"complete": 100, "fail": 0, "1%": 1, "0.5%": 0.5, "0%": 0, "100%": 100} {
		if got, err := ParsePartial(text); err != nil || got != want {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "maybe", "1", "-1%", "101%", "NaN%", "%"} {
		if got, err := ParsePartial(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestPartialTolerates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		allowed       Partial
		failed, moved int64
		want          bool
	}{
		{0, 0, 0, true},
		{0, 1, 1000, false},
		{1, 1, 1, true},
		{1, 2, 1, false}, // the most of the volume is missing
		{1, 5, 20, true},
		{1, 6, 20, false},
		{1, 10, 990, true},
		{1, 11, 989, false},
		{1, 1, 0, false},
		{100, 1000, 1, true},
	} {
		if got := c.allowed.tolerates(c.failed, c.moved); got != c.want {
			t.Errorf("%v %% with %d failed and %d moved: got %v", c.allowed, c.failed, c.moved, got)
		}
	}
}
