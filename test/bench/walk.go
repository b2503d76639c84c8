package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// newWalk compares how we add up the sizes of a volume's files with du. The cache is warm.
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
