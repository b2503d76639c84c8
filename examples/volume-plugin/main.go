// Command volume-plugin is a worked example of a plugin for Velero's volume snapshots that reports its progress. A volume is
// a directory, and a snapshot is a copy of it that goes on after CreateSnapshot has returned, as in a cloud.
//
// A Velero server that finds it in its plugin directory starts it as volume snapshotter "example.io/directories"; the
// config of the VolumeSnapshotLocation is in serve.go. Without a server the command line calls its methods:
//
//	volume-plugin -dir DIR snapshot BACKUP VOLUME    copies DIR/volumes/VOLUME to DIR/snapshots
//	volume-plugin -dir DIR restore SNAPSHOT          copies it back, to a new volume
//	volume-plugin -dir DIR resume                    resumes what an earlier process has left
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
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/plimsoll-io/plimsoll/pkg/volumeplugin"
)

const (
	pluginName = "example.io/directories"
	patience   = 24 * time.Hour   // for a copy
	flush      = 10 * time.Second // for what is to be written when the process ends
)

type flags struct {
	dir, kubeconfig string
	limit           int
	interval        time.Duration
}

func main() {
	if startedByVelero() {
		serve()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "volume-plugin:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	var f flags
	set := flag.NewFlagSet("volume-plugin", flag.ContinueOnError)
	set.StringVar(&f.dir, "dir", ".", "holds the directories volumes and snapshots")
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "of the cluster; default: the one that this runs in")
	set.IntVar(&f.limit, "limit", 0, "bytes that are copied in a second; 0: as many as can be")
	set.DurationVar(&f.interval, "interval", 0, "between reports; default 10s")
	if err := set.Parse(args); err != nil {
		return err
	}
	recorder, err := newRecorder(ctx, f)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flush)
		defer cancel()
		recorder.Close(ctx)
	}()
	inner := newDirectories(ctx, filepath.Join(f.dir, "volumes"), filepath.Join(f.dir, "snapshots"), f.limit)
	defer inner.wait()
	plugin := wrap(inner, recorder)
	if err := plugin.Init(nil); err != nil {
		return err
	}
	if set.NArg() == 1 && set.Arg(0) == "resume" {
		recorder.Wait(ctx)
		return nil
	}
	return play(plugin, set.Args(), out)
}

// wrap makes inner report its progress. Its two lines, and newRecorder, are all that an existing plugin needs.
func wrap(inner *directories, recorder *volumeplugin.Recorder) *volumeplugin.Snapshotter {
	return volumeplugin.Wrap(inner, recorder, volumeplugin.WrapOptions{
		Backups: inner.backupProgress, RestoresTo: inner.restoreProgress, Wait: patience,
	})
}

// play calls the plugin as Velero would.
func play(plugin *volumeplugin.Snapshotter, args []string, out io.Writer) error {
	switch {
	case len(args) == 3 && args[0] == "snapshot":
		id, err := plugin.CreateSnapshot(args[2], "", map[string]string{"velero.io/backup": args[1], "velero.io/pv": args[2]})
		if err != nil {
			return err
		}
		fmt.Fprintln(out, id)
		return nil
	case len(args) == 2 && args[0] == "restore":
		id, err := plugin.CreateVolumeFromSnapshot(args[1], "", "", nil)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, id)
		return nil
	default:
		return errors.New("want: snapshot BACKUP VOLUME, restore SNAPSHOT, or resume")
	}
}

func newRecorder(ctx context.Context, f flags) (*volumeplugin.Recorder, error) {
	options := volumeplugin.Options{Plugin: pluginName, Interval: f.interval}
	if f.kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("read kubeconfig: %w", err)
		}
		if options.Client, err = volumeplugin.NewClient(config); err != nil {
			return nil, err
		}
	}
	return volumeplugin.New(ctx, options), nil
}
