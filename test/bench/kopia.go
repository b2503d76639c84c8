package main

import (
	"context"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// newKopia compares our data path with kopia's own program, in the version of the library that we are built with.
func newKopia(dir string, data tree) (*sides, error) {
	program, err := parts.FindKopia()
	if err != nil {
		return nil, err
	}
	worker, err := parts.FindKopiaWorker()
	if err != nil {
		return nil, err
	}
	volume := filepath.Join(dir, "volume")
	if err := data.fill(volume); err != nil {
		return nil, err
	}
	open := func(_ context.Context, dir string) (uploader.Uploader, error) {
		return kopia.New(kopia.Options{Worker: worker, CacheDir: filepath.Join(dir, "cache"), TempDir: filepath.Join(dir, "tmp")})
	}
	return &sides{ours: &dataPath{volume: volume, open: open}, theirs: &bareKopia{program: program, volume: volume}}, nil
}

// bareKopia is kopia's program. Its restore is followed by a flush of the file system, which ours ends with.
type bareKopia struct{ program, volume string }

func (k *bareKopia) begin(ctx context.Context, dir string) (func(context.Context, string) error, error) {
	command := func(ctx context.Context, args ...string) error {
		args = append(args, "--config-file", filepath.Join(dir, "repository.config"), "--log-dir", filepath.Join(dir, "log"))
		cmd := exec.CommandContext(ctx, k.program, args...)
		cmd.Env = []string{
			"HOME=" + dir, "KOPIA_PASSWORD=" + password, "KOPIA_CHECK_FOR_UPDATES=false",
			"KOPIA_CACHE_DIRECTORY=" + filepath.Join(dir, "cache"), "PATH=/usr/bin:/bin",
		}
		return runQuietly(cmd)
	}
	if err := command(ctx, "repository", "create", "filesystem", "--path", filepath.Join(dir, "repository")); err != nil {
		return nil, err
	}
	return func(ctx context.Context, step string) error {
		if step != restore {
			return command(ctx, "snapshot", "create", k.volume)
		}
		target, err := fresh(dir, "target")
		if err != nil {
			return err
		}
		defer target.Close()
		if err := command(ctx, "snapshot", "restore", k.volume, target.Name()); err != nil {
			return err
		}
		return unix.Syncfs(int(target.Fd()))
	}, nil
}
