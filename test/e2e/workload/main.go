// Command workload is what runs in the pods of the end-to-end suite.
//
//	workload make [FLAGS] DIR...             fills directories with trees, each with another one
//	workload fill [FLAGS] DIR...             does that, and says which directories it made and which it found full
//	workload verify [FLAGS] SCRATCH DIR...   makes these trees again in SCRATCH, and compares them with DIR...
//	workload sleep                           runs until it is told to end
//	workload mkdir DIR...                    makes directories
//	workload remove DIR...                   removes directories with all that is in them
//	workload write FILE TEXT TIME            writes a file that was modified then
//	workload copy FROM TO                    copies a directory into one that is there
//	workload digest DIR                      says how many files a directory has, and the SHA-256 of their names and contents
//	workload agent NODE                      says what the node agent of a node may do, as JSON
//	workload kill NODE                       kills the node agent of a node
//	workload reboot UID...                   kills all processes of these pods, sandboxes included, as the start of a node does
//	workload leftovers UID...                says which processes of node agents do not end, and what stays mounted for
//	                                         these pods
//
// FLAGS are -bytes N for each tree, -seed N of the first tree, -plain for what kopia can store, and
// -kopia-times for what Velero's own node agent restores. The last four
// commands look at all processes of a node, so their pod has to share its process namespace.
//
// What there is to say goes to the container's termination message; without one, to standard output.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/test/tree"
)

// terminationMessage is where kubelet reads what a container has to say at its end.
const terminationMessage = "/dev/termination-log"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	var said strings.Builder
	err := run(ctx, os.Args[1:], &said)
	stop()
	if err != nil {
		fmt.Fprintln(&said, err)
	}
	say(said.String())
	if err != nil {
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("no command is given")
	}
	command, args := args[0], args[1:]
	switch {
	case command == "make":
		return makeTrees(args, io.Discard)
	case command == "fill":
		return makeTrees(args, out)
	case command == "verify":
		return verifyTrees(args)
	case command == "sleep" && len(args) == 0:
		<-ctx.Done()
		return nil
	case command == "mkdir":
		return forEach(args, func(dir string) error { return os.MkdirAll(dir, 0o755) })
	case command == "remove":
		return forEach(args, os.RemoveAll)
	case command == "copy" && len(args) == 2:
		return os.CopyFS(args[1], os.DirFS(args[0]))
	case command == "write" && len(args) == 3:
		return write(args[0], args[1], args[2])
	case command == "digest" && len(args) == 1:
		return digest(args[0], out)
	case command == "agent" && len(args) == 1:
		return describeAgent(args[0], out)
	case command == "kill" && len(args) == 1:
		return killAgent(args[0])
	case command == "reboot":
		return killPods(args)
	case command == "leftovers":
		return awaitNoLeftovers(ctx, args, out)
	default:
		return fmt.Errorf("unknown command: %s %q", command, args)
	}
}

// write makes a file and the directories that it is in.
func write(name, text, modified string) error {
	at, err := time.Parse(time.RFC3339, modified)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644), os.Chtimes(name, at, at))
}

func digest(dir string, out io.Writer) error {
	said, err := tree.Digest(dir)
	fmt.Fprint(out, said)
	return err
}

func forEach(paths []string, do func(string) error) error {
	for _, path := range paths {
		if err := do(path); err != nil {
			return err
		}
	}
	return nil
}

// maxMessage is a bit less than kubelet keeps of a termination message.
const maxMessage = 4000

func say(text string) {
	text = text[:min(len(text), maxMessage)]
	fmt.Print(text)
	if err := os.WriteFile(terminationMessage, []byte(text), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// forest is what the directories of a pod are filled with.
type forest struct {
	spec       tree.Spec
	kopiaTimes bool
	dirs       []string
}

func parseForest(args []string) (forest, error) {
	var f forest
	flags := flag.NewFlagSet("workload", flag.ContinueOnError)
	flags.Int64Var(&f.spec.Bytes, "bytes", 0, "of each tree")
	flags.Uint64Var(&f.spec.Seed, "seed", 0, "of the first tree")
	flags.BoolVar(&f.spec.Plain, "plain", false, "only what kopia can store")
	flags.BoolVar(&f.kopiaTimes, "kopia-times", false, "compare times as far as kopia's own restore keeps them")
	err := flags.Parse(args)
	f.dirs = flags.Args()
	return f, err
}

// makeTrees does nothing in directories that are not empty: those of a restored pod, whose init containers run again.
func makeTrees(args []string, out io.Writer) error {
	f, err := parseForest(args)
	if err != nil {
		return err
	}
	for _, dir := range f.dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		did := "found"
		if len(entries) == 0 {
			did, err = "made", tree.Make(dir, f.spec)
		}
		if err != nil {
			return err
		}
		fmt.Fprintln(out, did, dir)
		if !untilTidy(dir) {
			fmt.Fprintln(out, "left .velero in", dir)
		}
		f.spec.Seed++
	}
	return nil
}

// verifyTrees compares directories with the trees that makeTrees made in others.
func verifyTrees(args []string) error {
	f, err := parseForest(args)
	if err != nil || len(f.dirs) < 2 {
		return errors.Join(errors.New("verify takes a directory for scratch, and directories to compare"), err)
	}
	scratch, dirs := f.dirs[0], f.dirs[1:]
	var wrong []error
	for _, dir := range dirs {
		untilTidy(dir) // tree.Compare finds what stays
		want := filepath.Join(scratch, filepath.Base(dir))
		if err := errors.Join(os.RemoveAll(want), os.Mkdir(want, 0o755)); err != nil { // kubelet may run it again
			return err
		}
		if err := tree.Make(want, f.spec); err != nil {
			return err
		}
		differences, err := tree.Compare(want, dir, tree.Options{Plain: f.spec.Plain, Sparse: true, KopiaTimes: f.kopiaTimes})
		if err != nil {
			return err
		}
		for _, difference := range differences {
			wrong = append(wrong, fmt.Errorf("%s: %s", dir, difference))
		}
		f.spec.Seed++
	}
	return errors.Join(wrong...)
}

// untilTidy waits until nothing of the node agent's is in a restored volume: the init container removes it, or the agent as soon
// as it sees that the init container has ended. It returns false if something stays.
func untilTidy(dir string) bool {
	deadline := time.After(time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Lstat(filepath.Join(dir, ".velero")); errors.Is(err, os.ErrNotExist) {
			return true
		}
		select {
		case <-tick.C:
		case <-deadline:
			return false
		}
	}
}
