package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/plimsoll-io/plimsoll/test/tree"
)

const (
	// terminationLog is where kubelet reads what a container has to say at its end.
	terminationLog = "/dev/termination-log"
	// tidyWithin is how long the node agent may take to remove its own file from a restored volume.
	tidyWithin = time.Minute
)

// inPod does what a pod of the demo has to do in a cluster:
//
//	fill APP BYTES     fills the app's volumes
//	verify APP BYTES   makes them again, and compares
//	sleep              runs until it is told to end
//	mkdir DIR...       makes directories
//
// What it has to say goes to the container's termination message, as JSON.
func inPod(ctx context.Context, command string, args []string) error {
	switch command {
	case "sleep":
		<-ctx.Done()
		return nil
	case "mkdir":
		for _, dir := range args {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		return nil
	}
	a, bytes, err := parseApp(args)
	if err != nil {
		return err
	}
	var said any
	if command == "fill" {
		said, err = a.make(volumesDir, bytes)
	} else {
		said, err = a.verify(volumesDir, scratchDir, bytes)
	}
	if err != nil {
		return err
	}
	text, err := json.Marshal(said)
	if err != nil {
		return err
	}
	return os.WriteFile(terminationLog, text, 0o600)
}

func parseApp(args []string) (app, int64, error) {
	for _, a := range apps() {
		if len(args) == 2 && a.name == args[0] {
			bytes, err := strconv.ParseInt(args[1], 10, 64)
			return a, bytes, err
		}
	}
	return app{}, 0, fmt.Errorf("%q are not an app and a number of bytes", args)
}

// make fills the app's volumes, which are directories in dir.
func (a app) make(dir string, bytes int64) (content, error) {
	var all content
	for _, v := range a.volumes {
		made, err := v.make(a, filepath.Join(dir, v.name), bytes)
		if err != nil {
			return all, err
		}
		all.Files, all.Bytes = all.Files+made.Files, all.Bytes+made.Bytes
	}
	return all, nil
}

// verify makes the app's volumes again in the directory scratch, and compares those in dir with them.
func (a app) verify(dir, scratch string, bytes int64) (verdict, error) {
	for _, v := range a.volumes {
		if err := os.Mkdir(filepath.Join(scratch, v.name), 0o755); err != nil {
			return verdict{}, err
		}
	}
	if _, err := a.make(scratch, bytes); err != nil {
		return verdict{}, err
	}
	var all verdict
	for _, v := range a.volumes {
		restored := filepath.Join(dir, v.name)
		awaitTidy(restored) // tree.Compare finds what stays
		found, err := tree.Compare(filepath.Join(scratch, v.name), restored, tree.Options{Sparse: true})
		if err != nil {
			return verdict{}, err
		}
		all.add(a, v, found)
	}
	return all, nil
}

// awaitTidy waits until nothing of the node agent's is in a restored volume. The init container without rights may leave the done
// file to the agent, which removes it as soon as it sees that the init container has ended.
func awaitTidy(dir string) {
	deadline := time.After(tidyWithin)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Lstat(filepath.Join(dir, ".velero")); errors.Is(err, fs.ErrNotExist) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			return
		}
	}
}
