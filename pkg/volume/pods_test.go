package volume

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/afero"
	"k8s.io/apimachinery/pkg/types"
)

const (
	podUID = types.UID("0b2c6c5e-8a3c-4a1e-9c55-1f6a5c3f2a10")
	csi    = "volumes/kubernetes.io~csi"
)

func TestFind(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		dirs    []string // below the pod's directory
		files   []string
		uid     types.UID
		dir     Dir
		want    string // below the pod's directory
		wantErr error
		wantMsg string
	}{
		"emptyDir": {
			dirs: []string{"volumes/kubernetes.io~empty-dir/data", csi + "/pvc-1/mount"},
			dir:  Dir{Name: "data"},
			want: "volumes/kubernetes.io~empty-dir/data",
		},
		"CSI": {
			dirs: []string{csi + "/pvc-1/mount", csi + "/pvc-2/mount"},
			dir:  Dir{Name: "pvc-1", CSI: true},
			want: csi + "/pvc-1/mount",
		},
		"CSI volume that was set up but not mounted": {
			dirs:    []string{csi + "/pvc-1"},
			dir:     Dir{Name: "pvc-1", CSI: true},
			wantErr: ErrNotMounted,
			wantMsg: "volumes/*/pvc-1/mount: volume is not mounted in the pod's directory, which has kubernetes.io~csi/pvc-1",
		},
		"another plugin has a volume of that name that is not mounted": {
			dirs: []string{csi + "/data/mount", "volumes/kubernetes.io~nfs/data"},
			dir:  Dir{Name: "data", CSI: true},
			want: csi + "/data/mount",
		},
		"two matches": {
			dirs:    []string{"volumes/kubernetes.io~nfs/data", "volumes/kubernetes.io~empty-dir/data"},
			dir:     Dir{Name: "data"},
			wantErr: ErrAmbiguous,
			wantMsg: "kubernetes.io~nfs/data",
		},
		"pod without volumes": {
			dirs: []string{"etc-hosts"}, dir: Dir{Name: "data"},
			wantErr: ErrNotMounted, wantMsg: "which has no volumes",
		},
		"more volumes than a message holds": {
			dirs: []string{
				csi + "/1", csi + "/2", csi + "/3", csi + "/4", csi + "/5", csi + "/6",
				csi + "/7", csi + "/8", csi + "/9", csi + "/A", csi + "/B", csi + "/C",
			},
			dir:     Dir{Name: "data"},
			wantErr: ErrNotMounted, wantMsg: "csi/A and 2 more",
		},
		"stray file beside the plugins": {
			dirs: []string{"volumes/kubernetes.io~nfs/data"}, files: []string{"volumes/README"},
			dir: Dir{Name: "data"}, want: "volumes/kubernetes.io~nfs/data",
		},
		"file in place of the volume": {
			files: []string{"volumes/kubernetes.io~nfs/data"}, dir: Dir{Name: "data"}, wantErr: ErrUnsafe,
		},
		"pod of another node": {
			dirs: []string{"volumes"}, uid: "7d1", dir: Dir{Name: "data"},
			wantErr: ErrPodNotFound, wantMsg: "the pod is gone, or runs on another node",
		},
		"wrong kubelet root": {
			dir: Dir{Name: "data"}, wantErr: ErrPodNotFound, wantMsg: "unless kubelet runs with --root-dir",
		},
		"UID with a path in it": {uid: "../..", dir: Dir{Name: "data"}, wantErr: ErrBadName},
		"UID is the parent":     {uid: "..", dir: Dir{Name: "data"}, wantErr: ErrBadName},
		"volume is the parent":  {dirs: []string{"volumes/x"}, dir: Dir{Name: ".."}, wantErr: ErrBadName},
		"volume with a path":    {dirs: []string{"volumes/x"}, dir: Dir{Name: "../../etc"}, wantErr: ErrBadName},
		"pattern is no pattern": {dirs: []string{csi + "/pvc-1"}, dir: Dir{Name: "*"}, wantErr: ErrNotMounted},
	}
	fileSystems := map[string]func(t *testing.T) (afero.Fs, string){
		"memory": func(*testing.T) (afero.Fs, string) { return afero.NewMemMapFs(), "/host_pods" },
		"real":   func(t *testing.T) (afero.Fs, string) { t.Helper(); return afero.NewOsFs(), t.TempDir() },
	}
	for kind, newFs := range fileSystems {
		for name, tt := range tests {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				fsys, root := newFs(t)
				for _, dir := range tt.dirs {
					must(t, fsys.MkdirAll(filepath.Join(root, string(podUID), dir), 0o755))
				}
				for _, file := range tt.files {
					path := filepath.Join(root, string(podUID), file)
					must(t, fsys.MkdirAll(filepath.Dir(path), 0o755))
					must(t, afero.WriteFile(fsys, path, nil, 0o644))
				}
				uid := podUID
				if tt.uid != "" {
					uid = tt.uid
				}
				got, err := NewPods(fsys, root).find(uid, tt.dir)
				checkError(t, err, tt.wantErr, tt.wantMsg)
				if want := filepath.Join(string(podUID), tt.want); tt.wantErr == nil && got != want {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		}
	}
}

func TestFindRefusesLinks(t *testing.T) {
	t.Parallel()
	for name, link := range linkAttacks() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := attackedPods(t, link)
			_, err := NewPods(afero.NewOsFs(), root).find(podUID, Dir{Name: "pvc-1", CSI: true})
			checkError(t, err, ErrUnsafe, "is a symbolic link")
		})
	}
}

// linkAttacks lists what may be a link on the way to a CSI volume, below the pods directory.
func linkAttacks() map[string]string {
	volume := filepath.Join(string(podUID), csi, "pvc-1")
	return map[string]string{
		"pod":     string(podUID),
		"volumes": filepath.Join(string(podUID), "volumes"),
		"plugin":  filepath.Join(string(podUID), csi),
		"volume":  volume,
		"mount":   filepath.Join(volume, "mount"),
	}
}

// attackedPods returns a pods directory with a CSI volume, with a link in place of one of its components. The link leads to
// a directory that is just like what it replaces.
func attackedPods(t *testing.T, link string) string {
	t.Helper()
	root := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(root, string(podUID), csi, "pvc-1/mount"), 0o755))
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.Rename(filepath.Join(root, link), outside))
	must(t, os.Symlink(outside, filepath.Join(root, link)))
	return root
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func checkError(t *testing.T, err, want error, message string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
	if err != nil && !strings.Contains(err.Error(), message) {
		t.Errorf("error %q does not say %q", err, message)
	}
}
