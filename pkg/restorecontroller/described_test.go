package restorecontroller

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/plimsoll-io/plimsoll/pkg/restore"
)

var update = flag.Bool("update", false, "write what pkg/describe shows of Restores, into its testdata")

// TestDescribedProgress keeps what pkg/describe is tested with equal to what this controller writes.
func TestDescribedProgress(t *testing.T) {
	t.Parallel()
	some := restore.Counts{Created: 40, Updated: 1, Unchanged: 2, Skipped: 1, Failed: 1}
	for name, steps := range map[string][]func(*Progress){
		"restoring": {
			func(p *Progress) { p.Step = StepCollecting },
			func(p *Progress) {
				p.Step, p.Items = StepRestoring, restore.Progress{Total: 120, Restored: 45, Skipped: 7, Estimate: true, Counts: some, Current: "v1/ConfigMap shop/settings"}
			},
		},
		"one-phase-done": {
			func(p *Progress) { p.Step, p.Items = StepRestoring, restore.Progress{Total: 3200, Estimate: true} },
			func(p *Progress) { p.Items.Restored, p.Items.Skipped, p.Items.Counts.Created = 100, 2900, 100 },
			func(p *Progress) { p.Items.Total, p.Step = 3000, StepVolumes }, // as ledger.complete ends it
			func(p *Progress) { p.Step, p.Percent = StepDone, 100 },
		},
		"dry-run": {
			func(p *Progress) { p.Step = StepCollecting },
			func(p *Progress) { p.DryRun, p.Items.Total = true, 120 },
			func(p *Progress) {
				p.Message = "dry run: nothing was restored; 120 items would be, 7 would be left out. The log lists them."
			},
			func(p *Progress) { p.Step, p.Percent = StepDone, 100 },
		},
	} {
		r := newReporter(time.Second, nil)
		for _, step := range steps {
			r.update(step)
		}
		got := encode(newProgressPatch("", r.now())) + "\n"
		file := filepath.Join("..", "describe", "testdata", "restores", name+".json")
		if *update {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s differs; go test -update writes it anew:\n%s", file, diff)
		}
	}
}
