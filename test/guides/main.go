// Command guides runs the commands of a page of docs/guides as they are written, and compares what they print with what the page
// shows. run.sh starts it in the network of a cluster; README.md says how guides are read and what may differ.
//
//	guides [-update] -set-up SCRIPT -dir DIR PAGE
//
// DIR is where the reader of the guide works: it has his checkout, plimsoll, and what the script SCRIPT puts there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"
)

// blockLimit is for a block that hangs: the slowest, which wait on purpose, take five minutes.
const blockLimit = 15 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "guides:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	update := flag.Bool("update", false, "write what the commands print into the guide")
	setUp := flag.String("set-up", "", "the script that makes what the guide's reader has before he begins")
	dir := flag.String("dir", "", "where the commands run")
	flag.Parse()
	if flag.NArg() != 1 {
		return errors.New("usage: guides [-update] -set-up SCRIPT -dir DIR PAGE")
	}
	file := flag.Arg(0)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	s, err := startShell(ctx, *dir)
	if err != nil {
		return err
	}
	defer s.close()
	r := &runner{shell: s, update: *update, sums: map[string]string{}}
	blocks := parse(string(text))
	if err := r.run(ctx, *setUp, blocks); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if *update {
		return os.WriteFile(file, []byte(rewrite(string(text), blocks)), 0o644)
	}
	if r.different > 0 {
		return fmt.Errorf("%s: %d blocks print something else than the guide shows; -update writes it there", file, r.different)
	}
	return nil
}

// runner runs the blocks of one guide.
type runner struct {
	shell     *shell
	update    bool
	sums      map[string]string // the checksums of this run, by those in the guide
	different int               // blocks
}

func (r *runner) run(ctx context.Context, setUp string, blocks []block) error {
	if err := r.hook(ctx, fmt.Sprintf(". %q && prepare", setUp)); err != nil {
		return fmt.Errorf("set-up: %w", err)
	}
	for i := range blocks {
		b := &blocks[i]
		if err := r.block(ctx, b); err != nil {
			return fmt.Errorf("line %d: %w", b.line, err)
		}
	}
	return nil
}

// hook runs something of the set-up, which must succeed.
func (r *runner) hook(ctx context.Context, commands string) error {
	output, failed, err := r.shell.run(ctx, commands)
	if strings.TrimSpace(output) != "" {
		fmt.Printf("--- set-up\n%s\n", output)
	}
	if err == nil && len(failed) > 0 {
		err = fmt.Errorf("these commands failed: %s", strings.Join(failed, "; "))
	}
	return err
}

func (r *runner) block(ctx context.Context, b *block) error {
	if err := r.hook(ctx, "before "+quote(b.commands)); err != nil {
		return fmt.Errorf("before it: %w", err)
	}
	begin := time.Now()
	fmt.Printf("--- line %d: %s\n%s\n", b.line, b.heading, b.commands)
	output, failed, err := r.shell.run(ctx, b.commands)
	fmt.Printf("--- %.0f s\n%s\n", time.Since(begin).Seconds(), output)
	if err != nil {
		return err
	}
	if len(failed) != b.failures() {
		return fmt.Errorf("%d commands failed, and %d in the guide: %s", len(failed), b.failures(), strings.Join(failed, "; "))
	}
	if err := r.judge(b, output); err != nil {
		return err
	}
	if err := r.hook(ctx, "after "+quote(b.commands)); err != nil {
		return fmt.Errorf("after it: %w", err)
	}
	return nil
}

// judge compares the output of a block with that in the guide, or takes it over.
func (r *runner) judge(b *block, output string) error {
	if !b.shown {
		return nil
	}
	if err := bindSums(r.sums, b.output, output); err != nil {
		return err
	}
	differences := compare(b, output)
	if len(differences) > 0 {
		fmt.Printf("--- OTHER THAN IN THE GUIDE:\n%s\n", strings.Join(differences, "\n"))
		r.different++
	}
	if r.update {
		b.output = output
	}
	return nil
}

// quote makes a word of the shell.
func quote(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
