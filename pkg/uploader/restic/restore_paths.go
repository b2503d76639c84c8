package restic

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/volume"
)

// restorePaths restores RestoreRequest.Paths. restic itself takes paths that the snapshot does not have for restored, so it lists them first.
func (u *Uploader) restorePaths(ctx context.Context, w *workspace, req uploader.RestoreRequest, sink progress.Sink) (result uploader.RestoreResult, err error) {
	var contents volume.Contents
	scan := &stream{sink: sink, reading: progress.Reading{Stage: progress.StageScanning}}
	err = u.pastDeadLocks(ctx, w, func() error {
		scan.report()
		contents, err = u.contents(ctx, w, req, scan.step)
		return err
	})
	if err != nil {
		return result, err
	}
	if !req.Sparse {
		if err := uploader.RequireRoom(ctx, req.Volume, contents.Bytes, scan.step); err != nil {
			return result, err
		}
	}
	err = u.pastDeadLocks(ctx, w, func() error {
		result, err = u.restore(ctx, w, req, &contents, sink)
		return err
	})
	if err == nil && !u.version.restoresParents() {
		err = u.restoreParents(ctx, w, req)
	}
	result.Contents, result.TotalFiles = contents, contents.Files
	return result, err
}

// contents counts what the snapshot has at and beneath the paths, and returns ErrPathNotFound for those that it does not have. step is called for
// each entry.
func (u *Uploader) contents(ctx context.Context, w *workspace, req uploader.RestoreRequest, step func()) (volume.Contents, error) {
	var c volume.Contents
	missing := req.InnerPaths()
	err := u.listPaths(ctx, w, req, append([]string{"--recursive"}, lockArgs(req.Repository)...), missing, func(e uploader.Entry) error {
		missing = slices.DeleteFunc(missing, func(p string) bool { return p == e.Path })
		c.Add(e.Mode, e.Size)
		step()
		return nil
	})
	if err == nil && len(missing) > 0 {
		named := make([]string, len(missing))
		for i, p := range missing {
			named[i] = printable(p)
		}
		err = fmt.Errorf("%w: %s", uploader.ErrPathNotFound, strings.Join(named, ", "))
	}
	return c, err
}

// listPaths has restic list paths of the snapshot.
func (u *Uploader) listPaths(ctx context.Context, w *workspace, req uploader.RestoreRequest, flags, paths []string, entry func(uploader.Entry) error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l := &listing{entry: entry, stop: stop}
	args := append(append([]string{jsonFlag}, flags...), req.SnapshotID)
	for _, p := range paths {
		args = append(args, "/"+p)
	}
	err := u.run(ctx, w, invocation{command: "ls", args: args, stdout: l.line, complete: true})
	switch {
	case l.failed != nil:
		return l.failed
	case err != nil:
		return explainList(err, l.found)
	case !l.found:
		return uploader.ErrSnapshotNotFound
	}
	return nil
}

// restoreParents gives the directories that lead to the paths their owner, mode and time, as restic does since 0.17.
func (u *Uploader) restoreParents(ctx context.Context, w *workspace, req uploader.RestoreRequest) error {
	parents := parentsOf(req.InnerPaths())
	if len(parents) == 0 {
		return nil
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", req.Volume.Fd()))
	if err != nil {
		return err
	}
	defer root.Close()
	found := map[string]uploader.Entry{}
	err = u.listPaths(ctx, w, req, lockArgs(req.Repository), parents, func(e uploader.Entry) error {
		if slices.Contains(parents, e.Path) {
			found[e.Path] = e
		}
		return nil
	})
	for _, p := range parents {
		if err != nil {
			break
		}
		err = restoreAttributes(root, p, found[p])
	}
	if err != nil {
		return fmt.Errorf("set the attributes of the directories that lead to the paths: %w", err)
	}
	return nil
}

// parentsOf returns the directories above paths, those that are deeper first.
func parentsOf(paths []string) []string {
	var parents []string
	for _, p := range paths {
		for p = path.Dir(p); p != "."; p = path.Dir(p) {
			parents = append(parents, p)
		}
	}
	slices.Sort(parents)
	parents = slices.Compact(parents)
	slices.Reverse(parents)
	return parents
}

// restoreAttributes passes over an owner that the file system does not take, as one on NFS may.
func restoreAttributes(root *os.Root, name string, e uploader.Entry) error {
	if err := root.Lchown(name, int(e.UID), int(e.GID)); err != nil && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return errors.Join(root.Chmod(name, e.Mode), root.Chtimes(name, e.ModTime, e.ModTime))
}

// includeArgs are the patterns that match the paths and nothing else. What restic's patterns know as a wildcard is escaped.
func includeArgs(paths []string) []string {
	escape := strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)
	var args []string
	for _, p := range paths {
		args = append(args, "--include", "/"+escape.Replace(p))
	}
	return args
}
