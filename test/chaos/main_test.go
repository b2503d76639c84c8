//go:build chaos

package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/plimsoll-io/plimsoll/test/leaks"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestMain(m *testing.M) {
	if err := rig.Prepare("chaos-agent", false); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := testenv.Main(m)
	if err := leaks.Await(); err != nil {
		fmt.Fprintln(os.Stderr, "the suite itself leaks goroutines:", err)
		code = 1
	}
	os.Exit(code)
}

// setting returns a number from the environment.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(cmp.Or(os.Getenv(name), strconv.FormatUint(otherwise, 10)), 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestChaos runs SEEDS seeds from FIRST on, or SEED alone, PARALLEL at a time.
func TestChaos(t *testing.T) {
	first, count := setting(t, "FIRST", 1), setting(t, "SEEDS", 20)
	if os.Getenv("SEED") != "" {
		first, count = setting(t, "SEED", 1), 1
	}
	testenv.New(t, testenv.Options{}) // starts the control plane that the seeds share
	server := s3.Start(t)
	queue := make(chan uint64)
	var mu sync.Mutex
	failed := map[uint64]string{}
	var workers sync.WaitGroup
	for range setting(t, "PARALLEL", 6) {
		workers.Go(func() {
			for seed := range queue {
				if wrong := runSeed(t, seed, server); wrong != "" {
					mu.Lock()
					failed[seed] = wrong
					mu.Unlock()
				}
			}
		})
	}
	for seed := first; seed < first+count; seed++ {
		queue <- seed
	}
	close(queue)
	workers.Wait()
	fmt.Print(tally.String())
	fmt.Printf("chaos: %d seeds, %d violations\n", count, len(failed))
	seeds := slices.Sorted(maps.Keys(failed))
	for _, seed := range seeds { // once more, since a log is cut by whoever shows it, and its end is not
		fmt.Print(failed[seed])
	}
	if len(failed) > 0 {
		t.Fatalf("failing seeds: %v; run one with make chaos SEED=N", seeds)
	}
}

// runSeed runs a seed, prints what came of it, and shrinks it if it fails. It returns what was wrong.
func runSeed(t *testing.T, seed uint64, server *s3.Server) string {
	p, begin := newPlan(seed), time.Now()
	rec := record(t, func(r *recorder) { play(r, p, server, sabotage{}) })
	if os.Getenv("SEED") != "" {
		keep(t, seed, p, rec)
	}
	if !rec.Failed() {
		fmt.Printf("ok   %5.1fs %s\n", time.Since(begin).Seconds(), brief(p))
		return ""
	}
	var said strings.Builder
	fmt.Fprintf(&said, "FAIL %5.1fs %s\n", time.Since(begin).Seconds(), p)
	for _, v := range rec.said() {
		fmt.Fprintf(&said, "     seed %d: %.2000s\n", seed, v)
	}
	fmt.Print(said.String())
	keep(t, seed, p, rec)
	if os.Getenv("SHRINK") != "0" {
		if short := shrink(t, p, server); len(short.backup)+len(short.restore) < len(p.backup)+len(p.restore) {
			fmt.Printf("     the shortest schedule that still fails:\n%s\n", short)
		}
	}
	return said.String()
}

// keep puts the log of a failed run into bin/chaos.
func keep(t *testing.T, seed uint64, p plan, rec *recorder) {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Error(err)
		return
	}
	text := p.String() + "\n\n" + strings.Join(rec.violations, "\n") + "\n\n" + strings.Join(rec.logged, "\n")
	dir := filepath.Join(root, "bin", "chaos")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("seed-%d.log", seed)), []byte(text), 0o644); err != nil {
		t.Error(err)
	}
}

// shrink drops fault by fault while the plan still fails.
func shrink(t *testing.T, p plan, server *s3.Server) plan {
	for _, op := range []operation{backup, restore} {
		for i := 0; i < len(p.of(op)); {
			shorter := p.with(op, slices.Delete(slices.Clone(p.of(op)), i, i+1))
			if rec := record(t, func(r *recorder) { play(r, shorter, server, sabotage{}) }); rec.Failed() {
				p = shorter
			} else {
				i++
			}
		}
	}
	return p
}

// brief is a plan in one line.
func brief(p plan) string {
	return fmt.Sprintf("seed %d: %s, %s, %s to %s; backup: %s; restore: %s", p.seed, p.uploader, p.store, p.source, p.target,
		cmp.Or(names(p.backup), "nothing"), cmp.Or(names(p.restore), "nothing"))
}
