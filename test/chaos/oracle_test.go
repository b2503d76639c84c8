//go:build chaos

package chaos

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// listing returns what each entry of a volume is, by path; nothing of what changes.
func (r *run) listing(op operation) map[string]string {
	root, all := r.volumes[op].files(), map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if name == hot {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err == nil && name != "." {
			all[name] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		}
		return err
	})
	if err != nil && !r.p.volume.changing {
		r.t.Errorf("list the volume: %v", err)
	}
	return all
}

// judgeSource holds that a backup changes nothing.
func (r *run) judgeSource(before map[string]string) {
	if after := r.listing(backup); !maps.Equal(before, after) {
		for name := range after {
			if before[name] != after[name] {
				r.t.Errorf("the backup has changed %q in the volume: %s, now %s", name, before[name], after[name])
			}
		}
		for name := range before {
			if after[name] == "" {
				r.t.Errorf("the backup has removed %q from the volume", name)
			}
		}
	}
}

// judgeEnd holds the half of the oracle that needs no tree: with recoverable faults alone an operation is Completed.
func (r *run) judgeEnd(op operation, v rig.Version, faults []fault) {
	r.t.Logf("the %s ends %s: %s", op, v.Phase, v.Message)
	tally.ended(op, v.Phase)
	switch {
	case v.Phase == rig.Completed && v.Done != v.Total:
		r.t.Errorf("the %s is Completed with %d of %d bytes", op, v.Done, v.Total)
	case v.Phase != rig.Completed && v.Message == "":
		r.t.Errorf("the %s is %s without a reason", op, v.Phase)
	case v.Phase != rig.Completed && recoverable(faults):
		r.t.Errorf("the %s is %s although it could have recovered from %s: %s", op, v.Phase, names(faults), v.Message)
	}
}

// judgeUnreadable holds that a backup names files as unreadable only where there are any.
func (r *run) judgeUnreadable(v rig.Version) {
	nameless := r.p.volume.invalid && r.p.uploader == rig.Kopia
	if v.Snapshot.Errors > 0 && recoverable(r.p.backup) && !r.p.volume.changing && !nameless {
		r.t.Errorf("the backup left %d files out, all of which could have been read later: %s", v.Snapshot.Errors, v.Message)
	}
}

// judgeRestored holds that what is Completed is there, and nothing else.
func (r *run) judgeRestored(k *kubelet) {
	r.judgeStarted(k)
	if r.p.again {
		r.endAgent((*rig.Agent).Kill)
		r.startAgent()
		k.end()
		k.begin()
		r.judgeStarted(k)
	}
	r.compare()
}

// judgeStarted holds that the pod runs, and that its volume has nothing of ours.
func (r *run) judgeStarted(k *kubelet) {
	if !k.await(time.Minute) {
		r.t.Errorf("the restore is Completed, and the init container still waits")
	} else if k.code != 0 {
		r.t.Errorf("the restore is Completed, and the init container ended with %d", k.code)
	}
	r.judgeNotes()
}

// judgeNotRestored holds that no pod runs whose volume was not restored.
func (r *run) judgeNotRestored(k *kubelet) {
	if k.await(2 * time.Second); k.passed {
		r.t.Errorf("the restore is not Completed, and the pod runs")
	}
}

// judgeNotes holds that nothing of ours stays in a volume once its pod runs.
func (r *run) judgeNotes() {
	notes := filepath.Join(r.volumes[restore].files(), ".velero")
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Lstat(notes); os.IsNotExist(err) {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			left, _ := os.ReadDir(notes)
			r.t.Errorf(".velero stays in the volume of a pod that runs: %v", left)
			return
		}
	}
}

// compare compares the restored volume with the source. Files that changed are not compared. Each other difference must be
// named in the PodVolumeBackup: as many are counted as unreadable there as roots are missing, and the message says so.
func (r *run) compare() {
	differences, err := tree.Compare(r.volumes[backup].files(), r.volumes[restore].lasting(r.t), tree.Options{Plain: r.p.uploader == rig.Kopia})
	if err != nil {
		r.t.Errorf("compare the volumes: %v", err)
		return
	}
	missing := map[string]bool{}
	var other []string
	for _, d := range differences {
		quoted, err := strconv.QuotedPrefix(d)
		if err != nil {
			r.t.Fatal(err)
		}
		name, _ := strconv.Unquote(quoted)
		switch {
		case name == hot || strings.HasPrefix(name, hot+"/"):
		case r.p.volume.invalid && r.p.uploader == rig.Kopia && strings.Contains(name, "\ufffd"): // kopia's name for what is missing
		case name == ".velero" || strings.HasPrefix(name, ".velero/"): // judgeNotes
		case strings.HasSuffix(d, " is missing"):
			missing[name] = true
		default:
			other = append(other, d)
		}
	}
	roots := slices.DeleteFunc(slices.Sorted(maps.Keys(missing)), func(name string) bool { return missing[path.Dir(name)] })
	named := int64(0)
	for _, o := range r.f.History.All() {
		if v := rig.Last(o); v.Terminal() && v.Message != "" {
			named = max(named, v.Snapshot.Errors)
		}
	}
	if int64(len(roots)) > named {
		r.t.Errorf("Completed, but %d paths are missing, and the objects count %d: %q", len(roots), named, roots[:min(5, len(roots))])
	}
	if len(other) > 0 {
		r.t.Errorf("Completed, but the restored volume differs:\n%s", strings.Join(other[:min(len(other), 10)], "\n"))
	}
}
