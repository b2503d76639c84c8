package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// newWalk compares how we add up the sizes of a volume's files with du.
func newWalk(dir string, data tree) (*sides, error) {
	path := filepath.Join(dir, "volume")
	if err := data.fill(path); err != nil {
		return nil, err
	}
	return &sides{ours: &sizes{path: path, files: int64(data.files)}, theirs: &du{path: path}}, nil
}

type sizes struct {
	path  string
	files int64
}

func (s *sizes) begin(context.Context, string) (func(context.Context, string) error, error) {
	return func(ctx context.Context, _ string) error {
		dir, err := os.Open(s.path)
		if err != nil {
			return err
		}
		defer dir.Close()
		usage, err := volume.Sizes(ctx, dir, nil)
		if err == nil && usage.Files != s.files {
			err = fmt.Errorf("counted %d files instead of %d", usage.Files, s.files)
		}
		return err
	}, nil
}

type du struct{ path string }

func (d *du) begin(context.Context, string) (func(context.Context, string) error, error) {
	return func(ctx context.Context, _ string) error {
		return runQuietly(exec.CommandContext(ctx, "du", "-s", "--apparent-size", d.path))
	}, nil
}

// cachesFile is where Linux takes orders to drop its caches. Only root can write it.
const cachesFile = "/proc/sys/vm/drop_caches"

// canDropCaches returns why the kernel's caches cannot be dropped, nil if they can.
func canDropCaches() error {
	f, err := os.OpenFile(cachesFile, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// dropCaches lets the kernel forget the files, directories and inodes that it has read, of the whole machine.
func dropCaches(ctx context.Context) error {
	unix.Sync() // what is not on disk yet would stay
	const pagesAndInodes = "3"
	if err := os.WriteFile(cachesFile, []byte(pagesAndInodes), 0); err != nil {
		return err
	}
	// du's program comes from the disk again, too. Ours runs already, so that du would pay alone.
	return runQuietly(exec.CommandContext(ctx, "du", "--version"))
}
