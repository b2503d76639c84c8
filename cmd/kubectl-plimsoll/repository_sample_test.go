package main

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/plimsoll-io/plimsoll/pkg/repositorytask"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// TestRepositorySample: each command reads a half, and after the second one the volume is proven.
func TestRepositorySample(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	data, err := kopia.New(kopia.Options{Worker: parts.KopiaWorker(t), TempDir: t.TempDir(), Logger: c.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	c.storeWithKopia(data)
	options := ctrl.Options{Cache: cache.Options{DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}}}
	c.StartManager(options, func(_ context.Context, mgr ctrl.Manager) error {
		return repositorytask.SetUp(mgr, repositorytask.Config{
			Namespace: c.Namespace, Verifiers: map[string]uploader.Verifier{"kopia": data}, ProgressInterval: 200 * time.Millisecond, Logger: c.Logger(),
		})
	})
	if out, _, _ := c.run("repository", "proofs"); strings.Contains(out, "SAMPLED") {
		t.Errorf("nothing is sampled: %s", out)
	}
	for i, want := range []struct {
		result, table string
		percent, code int
		state         proofState
	}{
		{"1/2", "50%", 50, exitFailed, proofMissing}, {"2/2", "100%", 100, 0, proofProven},
	} {
		out, errOut, code := c.run("repository", "verify", "--latest", "--sample", "50%")
		t.Log(out, errOut)
		if code != 0 || !strings.Contains(out, "shop/db-0:data  Sampled "+want.result) || !strings.Contains(out, "1 pod volume sampled: part "+strings.Replace(want.result, "/", " of ", 1)) {
			t.Errorf("task %d: code %d", i+1, code)
		}
		if task, _, _ := strings.Cut(strings.TrimPrefix(out, "repositorytask.plimsoll.io/"), " created\n"); i == 0 {
			out, _, code := c.run("explain", "repositorytask", task)
			if code != 0 || !strings.Contains(out, "the part whose turn it was") || strings.Contains(out, "is Sampled") {
				t.Errorf("explain: code %d, %s", code, out)
			}
		}
		out, errOut, code = c.run("repository", "proofs", "-o", "json")
		var shown []volumeProof
		if err := json.Unmarshal([]byte(out), &shown); err != nil || code != want.code || len(shown) != 1 || shown[0].SampledPercent == nil || *shown[0].SampledPercent != want.percent || shown[0].State != want.state {
			t.Errorf("proofs after task %d: code %d, %v: %s%s", i+1, code, err, out, errOut)
		}
		if out, _, _ := c.run("repository", "proofs"); !strings.Contains(out, "SAMPLED\n") || !strings.HasSuffix(out, "  "+want.table+"\n") {
			t.Errorf("proofs after task %d: %s", i+1, out)
		}
	}

	out, errOut, code := c.run("repository", "verify", "--latest", "--sample", "5%", "--schedule", "@daily", "--image", "plimsoll:v1")
	if code != 0 {
		t.Fatalf("code %d: %s", code, errOut)
	}
	p := readPrinted(t, out)
	if args := p.cronJob.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Args; p.cronJob.Name != "plimsoll-verify-latest-sample" || !slices.Contains(args, "--sample=5%") {
		t.Errorf("CronJob %s: %q", p.cronJob.Name, args)
	}
	for _, test := range []struct{ sample, want string }{
		{"5", "--sample=5 is not a whole percentage from 1% to 50%, such as 5%"},
		{"0%", "--sample=0% is not"},
		{"51%", "--sample=51% is not"},
		{"2.5%", "--sample=2.5% is not"},
		{"much", "--sample=much is not"},
		{"-5%", "--sample=-5% is not"},
	} {
		if _, errOut, code := c.run("repository", "verify", "--backup", "nightly", "--sample="+test.sample); code != 2 || !strings.Contains(errOut, test.want) {
			t.Errorf("code %d: %s", code, errOut)
		}
	}
	if _, errOut, code := c.run("repository", "verify", "--backup", "nightly", "--sample", "5%", "--restore-to", "standard"); code != 2 || !strings.Contains(errOut, "--sample cannot be combined with --restore-to") {
		t.Errorf("code %d: %s", code, errOut)
	}
}
