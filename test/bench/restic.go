package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/restic"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

const password = "static-passw0rd"

// newRestic compares our data path with the same restic, run by hand.
func newRestic(_ context.Context, dir string, data tree) (*sides, error) {
	program, err := parts.FindRestic(parts.DefaultRestic)
	if err != nil {
		return nil, err
	}
	volume := filepath.Join(dir, "volume")
	if err := data.fill(volume); err != nil {
		return nil, err
	}
	open := func(ctx context.Context, dir string) (uploader.Uploader, error) {
		return restic.New(ctx, program, restic.Options{CacheDir: filepath.Join(dir, "cache"), TempDir: filepath.Join(dir, "tmp")})
	}
	return &sides{ours: &dataPath{volume: volume, open: open}, theirs: &bareRestic{program: program, volume: volume}}, nil
}

// dataPath is an Uploader of ours.
type dataPath struct {
	volume string
	open   func(ctx context.Context, dir string) (uploader.Uploader, error)
}

func (d *dataPath) begin(ctx context.Context, dir string) (func(context.Context, string) error, error) {
	u, err := d.open(ctx, dir)
	if err != nil {
		return nil, err
	}
	repository := uploader.Repository{URL: filepath.Join(dir, "repository"), Password: password}
	if err := u.Initialize(ctx, repository); err != nil {
		return nil, err
	}
	var snapshot string
	return func(ctx context.Context, step string) error {
		if step == restore {
			return d.restore(ctx, u, uploader.RestoreRequest{Repository: repository, SnapshotID: snapshot}, dir)
		}
		volume, err := os.Open(d.volume)
		if err != nil {
			return err
		}
		defer volume.Close()
		result, err := u.Backup(ctx, uploader.BackupRequest{Repository: repository, Volume: volume, Parent: snapshot}, progress.Discard)
		if err == nil && result.Errors > 0 {
			err = fmt.Errorf("%d files could not be read", result.Errors)
		}
		snapshot = result.SnapshotID
		return err
	}, nil
}

func (d *dataPath) restore(ctx context.Context, u uploader.Uploader, request uploader.RestoreRequest, dir string) error {
	target, err := fresh(dir, "target")
	if err != nil {
		return err
	}
	defer target.Close()
	request.Volume = target
	result, err := u.Restore(ctx, request, progress.Discard)
	if err == nil && result.Errors > 0 {
		err = fmt.Errorf("%d files could not be written", result.Errors)
	}
	return err
}

// bareRestic is the program without us.
type bareRestic struct{ program, volume string }

func (r *bareRestic) begin(ctx context.Context, dir string) (func(context.Context, string) error, error) {
	command := func(ctx context.Context, args ...string) error {
		cmd := exec.CommandContext(ctx, r.program, args...)
		cmd.Dir = r.volume
		cmd.Env = []string{
			"RESTIC_REPOSITORY=" + filepath.Join(dir, "repository"), "RESTIC_PASSWORD=" + password,
			"RESTIC_CACHE_DIR=" + filepath.Join(dir, "cache"),
		}
		return runQuietly(cmd)
	}
	if err := command(ctx, "init"); err != nil {
		return nil, err
	}
	return func(ctx context.Context, step string) error {
		if step != restore {
			return command(ctx, "backup", ".", "--json", "--host", "bench")
		}
		target, err := fresh(dir, "target")
		if err != nil {
			return err
		}
		defer target.Close()
		return command(ctx, "restore", "latest", "--json", "--target", target.Name())
	}, nil
}

// runQuietly shows what a command has printed only if it fails.
func runQuietly(cmd *exec.Cmd) error {
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%v: %w\n%s", cmd.Args, err, &output)
	}
	return nil
}
