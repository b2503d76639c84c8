// Command bench measures our data paths side by side with the bare tools, on the same data in the same run, and prints one
// table: `make bench`, or `make bench-quick` for a shorter run on less data.
//
// Each row is measured in rounds. A round runs both sides, and the side that goes first alternates. One round before them warms
// up and does not count. The table shows medians; ratios are taken round by round, so that a machine whose speed drifts does
// not change them. docs/performance.md explains the rows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/worker"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

func main() {
	worker.Main()
	parts.UseWorkerExec()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	quick := flag.Bool("quick", false, "measure a tenth of the data, in three rounds")
	rounds := flag.Int("rounds", 5, "measure each row this often, after one round of warm-up")
	only := flag.String("rows", "", "measure only the scenarios whose name matches this regular expression")
	parent := flag.String("dir", os.TempDir(), "make the data below this directory")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("--rows: %w", err)
	}
	scale := 1
	if *quick {
		scale, *rounds = 10, min(*rounds, 3)
	}
	dir, err := os.MkdirTemp(*parent, "plimsoll-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	t := newTable(os.Stdout, dir, *rounds, scale)
	for _, s := range scenarios(scale) {
		if !pattern.MatchString(s.name) {
			continue
		}
		if err := measure(ctx, s, filepath.Join(dir, s.name), *rounds, t); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return t.flush()
}

// measure runs a scenario and adds its rows to the table.
func measure(ctx context.Context, s scenario, dir string, rounds int, t *table) (err error) {
	began := time.Now()
	fmt.Fprintf(os.Stderr, "%s: making the data\n", s.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if !s.keep {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	sides, err := s.prepare(ctx, dir)
	if err != nil {
		return err
	}
	rows := slices.DeleteFunc(s.rows, func(r row) bool { return r.cold() && t.skipsCold(s.name, r) })
	results := make([]result, len(rows))
	for round := range rounds + 1 {
		fmt.Fprintf(os.Stderr, "%s: round %d of %d, %s\n", s.name, round, rounds, time.Since(began).Round(time.Second))
		of := filepath.Join(dir, fmt.Sprintf("round-%d", round))
		pairs, err := sides.round(ctx, of, rows, round%2 == 0)
		if err != nil {
			return err
		}
		if !s.keep {
			if err := os.RemoveAll(of); err != nil { // six rounds of a gigabyte fill a disk
				return err
			}
		}
		if round == 0 {
			continue // warm-up
		}
		for i := range pairs {
			results[i].pairs = append(results[i].pairs, pairs[i])
		}
	}
	for i, row := range rows {
		results[i].row = row
		t.add(s.name, results[i])
	}
	return nil
}
