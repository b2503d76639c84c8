package screen

import (
	"strings"
	"testing"
	"unicode"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// TestItFits tries each size of a screen: whatever does not fit is left out, and nothing is wider or longer.
func TestItFits(t *testing.T) {
	t.Parallel()
	v := everyState()
	v.Notes = []string{strings.Repeat("a long note ", 20)}
	v.Operation.FailureReason = strings.Repeat("a long reason ", 20)
	for width := 1; width <= 200; width++ {
		for _, height := range []int{1, 2, 5, 10, 24, 100} {
			for _, first := range []int{-1, 0, 3, 1000} {
				lines := strings.Split(Render(v, Options{Width: width, Height: height, First: first, Unicode: true}), "\n")
				if len(lines) > height {
					t.Fatalf("%d lines on a screen of %d", len(lines), height)
				}
				for _, line := range lines {
					// The fewest columns are a name of 1, a state and a percentage.
					if length(line) > max(width, 1+len(gap)+stateWidth+len(gap)+percentWidth) {
						t.Fatalf("a line of %d on a screen of %d: %q", length(line), width, line)
					}
				}
			}
		}
	}
}

// TestNothingHostileIsDrawn has what a terminal would obey in each text that comes from a cluster.
func TestNothingHostileIsDrawn(t *testing.T) {
	t.Parallel()
	const evil = "\x1b[2J\u202e\x9b\n\r\t\xffevil"
	bad := func(state progress.State) describe.Volume {
		return describe.Volume{
			Kind: evil, Name: evil, Owner: evil, Node: evil, PodNamespace: evil + string(state), Pod: evil, Volume: evil, Phase: evil, Message: evil,
			Progress: progress.Snapshot{State: state, Message: evil, LastError: evil, CurrentItem: evil, BytesDone: -5, TotalBytes: 1, BytesPerSecond: -7, ETASeconds: new(int64(-1))},
		}
	}
	v := &describe.View{
		At: now, Notes: []string{evil},
		Volumes: []describe.Volume{bad(evil), bad(progress.StateFailed), bad(progress.StateWaiting), bad(progress.StateCompleted), bad(progress.StateStalled)},
		Operation: &describe.Operation{
			Kind: describe.KindBackup, Name: evil, Phase: evil, FailureReason: evil, ValidationErrors: []string{evil}, Errors: -1,
			Started: now, Items: describe.Items{Done: -3, Total: 2, Step: evil, Message: evil, Current: evil},
		},
	}
	var lines strings.Builder
	if err := NewLines(&lines).Print(v); err != nil {
		t.Fatal(err)
	}
	all := *v
	all.Operation = nil
	for name, text := range map[string]string{
		"screen": Render(v, Options{Width: 200, Height: 30, Unicode: true}), "narrow": Render(v, Options{Width: 30, Height: 30}),
		"still": Render(v, Options{Width: 200}), "all": Render(&all, Options{Width: 200, Height: 30}), "lines": lines.String(), "summary": Summary(v),
	} {
		if !strings.Contains(text, `\x1b`) {
			t.Errorf("%s does not have the text: the test proves nothing", name)
		}
		for _, r := range text {
			if r != '\n' && !unicode.IsGraphic(r) || r == unicode.ReplacementChar {
				t.Errorf("%s has %q: %q", name, r, text)
				break
			}
		}
	}
}

func TestBarIsFullOnlyAtTheEnd(t *testing.T) {
	t.Parallel()
	for _, o := range []Options{{}, {Unicode: true}} {
		full := o.bar(1, 20, plain)
		for share := -0.5; share < 1; share += 0.001 {
			got := o.bar(share, 20, plain)
			if length(got) != 20 || got == full {
				t.Fatalf("bar(%f) = %q", share, got)
			}
		}
		if got := o.bar(7, 20, plain); got != full {
			t.Errorf("bar(7) = %q, want %q", got, full)
		}
	}
}

func TestNamesAreCutInTheMiddle(t *testing.T) {
	t.Parallel()
	o := Options{Unicode: true}
	for width, want := range map[int]string{
		30: "database-0/data", 15: "database-0/data", 14: "databa…-0/data", 9: "data…data", 5: "da…ta", 4: "dat…", 1: "…", 0: "",
	} {
		if got := o.clipName("database-0/data", width); got != want {
			t.Errorf("%d: %q, want %q", width, got, want)
		}
	}
}
