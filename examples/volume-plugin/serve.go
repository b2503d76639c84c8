package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/sirupsen/logrus" //nolint:depguard // it is in the signature of Velero's plugin framework
	"github.com/vmware-tanzu/velero/pkg/plugin/framework"
	volumesnapshotter "github.com/vmware-tanzu/velero/pkg/plugin/velero/volumesnapshotter/v1"
)

// Keys of the VolumeSnapshotLocation's spec.config. They mean what the flags of the same names do.
const (
	configDir        = "dir"
	configKubeconfig = "kubeconfig"
	configLimit      = "limit"
	configInterval   = "interval"
)

// startedByVelero reports whether a Velero server started the process: it sets this variable for its plugins.
func startedByVelero() bool {
	cookie := framework.Handshake()
	return os.Getenv(cookie.MagicCookieKey) == cookie.MagicCookieValue
}

// serve answers the Velero server that started the process, until that ends it.
func serve() {
	framework.NewServer().
		RegisterVolumeSnapshotter(pluginName, func(logrus.FieldLogger) (any, error) { return &located{}, nil }).
		Serve()
}

// located is a plugin that learns from its VolumeSnapshotLocation where its directories are: Velero calls Init first.
type located struct {
	volumesnapshotter.VolumeSnapshotter
}

// Init makes the plugin and initialises it.
func (l *located) Init(config map[string]string) error {
	f := flags{dir: config[configDir], kubeconfig: config[configKubeconfig]}
	if !filepath.IsAbs(f.dir) {
		return fmt.Errorf("config.%s of the VolumeSnapshotLocation is %q: want an absolute path", configDir, f.dir)
	}
	var err error
	if text, ok := config[configLimit]; ok {
		if f.limit, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("config.%s of the VolumeSnapshotLocation: %w", configLimit, err)
		}
	}
	if text, ok := config[configInterval]; ok {
		if f.interval, err = time.ParseDuration(text); err != nil {
			return fmt.Errorf("config.%s of the VolumeSnapshotLocation: %w", configInterval, err)
		}
	}
	// Velero ends the process without a word when it has no more work for it.
	ctx := context.Background() //nolint:forbidigo // Init is called over RPC and gets none
	recorder, err := newRecorder(ctx, f)
	if err != nil {
		return err
	}
	inner := newDirectories(ctx, filepath.Join(f.dir, "volumes"), filepath.Join(f.dir, "snapshots"), f.limit)
	l.VolumeSnapshotter = wrap(inner, recorder)
	return l.VolumeSnapshotter.Init(config)
}
