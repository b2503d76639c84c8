//go:build e2e

package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/test/tree"
)

// mounted is where the pods of apps have the volume with a claim.
const mounted = "/volumes/" + local

// history is what one data path has of a volume: two backups of a directory docs, whose files are known.
type history struct {
	uploader     string
	older, newer string // PodVolumeBackups
	was, is      map[string]string
	big          string // digest of directory big, in both
}

// testPaths does what docs/repositories.md and docs/kubectl.md say of single paths, and keeps the repositories, with both data paths in a
// volume that is in use. What is restored and what is got is compared by content.
func (c *cluster) testPaths(t *testing.T) {
	a := &app{namespace: "e2e-paths", name: "app", node: c.nodes[1], uploader: kopia, volumes: []string{local}, bytes: 2 << 20, seed: 11000}
	c.startApps(t, []*app{a})
	c.backedUp = append(c.backedUp, a.namespace)
	histories := map[string]*history{}
	for _, uploader := range []string{restic, kopia} {
		h := c.makeHistory(t, a, uploader)
		histories[uploader] = h
		c.readHistory(t, a, h)
		c.restorePaths(t, a, h)
		c.restorePathsToClaim(t, a, h)
	}
	c.browsePages(t, a, histories)
	left := c.keepLast(t, a, histories)
	c.maintainBySchedule(t, a)
	for uploader, backup := range left {
		c.mendRepository(t, a, histories[uploader], backup)
	}
	c.forgetOrphans(t, a)
}

// inApp runs the suite's program in an app's pod.
func (c *cluster) inApp(t *testing.T, a *app, args ...string) string {
	t.Helper()
	return string(c.kubectl(t, slices.Concat([]string{"exec", "--namespace", a.namespace, a.name, "--", "workload"}, args)...))
}

func (c *cluster) write(t *testing.T, a *app, name, text, modified string) {
	t.Helper()
	c.inApp(t, a, "write", path.Join(mounted, name), text, modified)
}

// digestOf is what the suite's program says of a directory with these files.
func digestOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return digestOfDir(t, dir)
}

func digestOfDir(t *testing.T, dir string) string {
	t.Helper()
	said, err := tree.Digest(dir)
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// checkDocs holds that directory docs of an app's volume has these files and no others.
func (c *cluster) checkDocs(t *testing.T, a *app, when string, files map[string]string) {
	t.Helper()
	if got, want := c.inApp(t, a, "digest", mounted+"/docs"), digestOf(t, files); got != want {
		t.Errorf("%s: docs has %s, want %s", when, got, want)
	}
}

func (c *cluster) makeHistory(t *testing.T, a *app, uploader string) *history {
	t.Helper()
	h := &history{
		uploader: uploader,
		was:      map[string]string{"report": "the first report, by " + uploader, "gone": "gone after the first backup of " + uploader},
		is:       map[string]string{"report": "the second one of " + uploader + ", which is longer", "new/added": "added before the second backup of " + uploader},
	}
	c.inApp(t, a, "remove", mounted+"/docs")
	for name, text := range h.was {
		c.write(t, a, "docs/"+name, text, "2026-01-01T00:00:00Z")
	}
	h.older = c.backUpVolume(t, a, uploader)
	c.inApp(t, a, "remove", mounted+"/docs/gone")
	for name, text := range h.is {
		c.write(t, a, "docs/"+name, text, "2026-02-01T00:00:00Z")
	}
	h.newer = c.backUpVolume(t, a, uploader)
	h.big = c.inApp(t, a, "digest", mounted+"/big")
	return h
}

// backUpVolume makes a backup that belongs to no Backup, and returns its name.
func (c *cluster) backUpVolume(t *testing.T, a *app, uploader string) string {
	t.Helper()
	var stored describe.Volume
	c.decode(t, &stored, "volume", "backup", a.namespace+"/"+a.name, local, "--to", location, "--uploader", uploader, "-o", "json")
	if stored.SnapshotID == "" {
		t.Fatalf("%s: %+v", uploader, stored)
	}
	return stored.Name
}

func (c *cluster) decode(t *testing.T, into any, args ...string) {
	t.Helper()
	said := c.plimsoll(t, args...)
	if err := json.Unmarshal([]byte(said), into); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
}

// readHistory lists, finds, compares and gets what the two backups have.
func (c *cluster) readHistory(t *testing.T, a *app, h *history) {
	t.Helper()
	var diff struct {
		Changes []struct{ Path, Change string }
	}
	c.decode(t, &diff, "--as", browser, "repository", "diff", "--from", h.older, "--to", h.newer, "-o", "json")
	changes := map[string]string{}
	for _, change := range diff.Changes {
		changes[change.Path] = change.Change
	}
	delete(changes, "docs") // its time
	want := map[string]string{"docs/report": "changed", "docs/gone": "removed", "docs/new": "added", "docs/new/added": "added"}
	if !maps.Equal(changes, want) {
		t.Errorf("%s: diff says %v, want %v", h.uploader, changes, want)
	}

	var found []struct {
		PodVolumeBackup, Path string
		Size                  int
	}
	c.decode(t, &found, "--as", browser, "repository", "find", "--volume", a.namespace+"/"+a.name+":"+local, "--name", "rep*", "-o", "json")
	sizes := map[string]int{}
	for _, f := range found {
		if f.Path == "docs/report" {
			sizes[f.PodVolumeBackup] = f.Size
		}
	}
	if sizes[h.older] != len(h.was["report"]) || sizes[h.newer] != len(h.is["report"]) {
		t.Errorf("%s: find says %v", h.uploader, found)
	}

	dir := t.TempDir()
	for name, got := range map[string]struct{ backup, path, want string }{
		"was": {h.older, "docs", digestOf(t, h.was)},
		"is":  {h.newer, "docs", digestOf(t, h.is)},
		"big": {h.newer, "big", h.big},
	} {
		c.plimsoll(t, "--as", browser, "repository", "get", "--from", got.backup, got.path, "-o", filepath.Join(dir, name))
		if digest := digestOfDir(t, filepath.Join(dir, name)); digest != got.want {
			t.Errorf("%s: get of %s brings %s, want %s", h.uploader, got.path, digest, got.want)
		}
	}
	if text := c.plimsoll(t, "--as", browser, "repository", "get", "--from", h.older, "docs/gone", "-o", "-"); text != h.was["gone"] {
		t.Errorf("%s: get of a file brings %q", h.uploader, text)
	}
}

// restorePaths restores files of the newer backup into the volume of the pod that runs, by each policy for files that exist.
func (c *cluster) restorePaths(t *testing.T, a *app, h *history) {
	t.Helper()
	restore := func(args ...string) {
		c.plimsoll(t, slices.Concat([]string{"volume", "restore", a.namespace + "/" + a.name, local, "--from", h.newer}, args)...)
	}
	const later, earlier = "2026-03-01T00:00:00Z", "2025-12-01T00:00:00Z"
	now := map[string]string{"report": "what the application has made of it", "own": "its own file", "new/added": h.is["new/added"]}
	c.inApp(t, a, "remove", mounted+"/docs/new", mounted+"/big")
	c.write(t, a, "docs/report", now["report"], later)
	c.write(t, a, "docs/own", now["own"], earlier)
	restore("--path", "docs/", "--path", "big")
	c.checkDocs(t, a, h.uploader+", never", now)
	if big := c.inApp(t, a, "digest", mounted+"/big"); big != h.big {
		t.Errorf("%s: big has %s, want %s", h.uploader, big, h.big)
	}
	c.write(t, a, "docs/new/added", "older than the backup's", earlier)
	restore("--path", "docs", "--overwrite", "if-newer")
	c.checkDocs(t, a, h.uploader+", if-newer", now)
	c.write(t, a, "docs/new/added", "newer than the backup's", later)
	now["report"], now["new/added"] = h.is["report"], "newer than the backup's"
	restore("--path", "docs/report", "--overwrite", "always")
	c.checkDocs(t, a, h.uploader+", always", now)
}

// restorePathsToClaim restores files of the newer backup into a claim that the command creates, and then of the older one into the same claim.
func (c *cluster) restorePathsToClaim(t *testing.T, a *app, h *history) {
	t.Helper()
	into := &app{namespace: a.namespace, name: "looked-up-" + h.uploader, node: a.node}
	c.makeLocalVolume(t, into)
	dir, claim := path.Join(nodeDirInPod, ownNamespace, into.volumeName()), into.namespace+"/"+into.name
	c.plimsoll(t, "volume", "restore", "--to-claim", claim, "--from", h.newer, "--path", "docs")
	docs := map[string]string{"docs/report": h.is["report"], "docs/new/added": h.is["new/added"]}
	if got, want := c.onNode(t, a.node, "digest", dir), digestOf(t, docs); got != want {
		t.Errorf("%s: the new claim has %s, want %s", h.uploader, got, want)
	}
	c.plimsoll(t, "volume", "restore", "--into-claim", claim, "--from", h.older, "--path", "docs/gone", "--path", "docs/report", "--overwrite", "always")
	docs["docs/report"], docs["docs/gone"] = h.was["report"], h.was["gone"]
	if got, want := c.onNode(t, a.node, "digest", dir), digestOf(t, docs); got != want {
		t.Errorf("%s: the claim has %s, want %s", h.uploader, got, want)
	}
}
