package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/afero"
	"k8s.io/apimachinery/pkg/types"
)

// What Open cannot do. The messages around them say where was looked and what to do.
var (
	// ErrPodNotFound: the pods directory has no directory of that pod, or there is no pods directory.
	ErrPodNotFound = errors.New("pod has no directory on this node")
	// ErrNotMounted: the pod has a directory, but the volume has none in it, or nothing is mounted on the volume's.
	ErrNotMounted = errors.New("volume is not mounted in the pod's directory")
	// ErrAmbiguous: directories of several volume plugins have the volume's name.
	ErrAmbiguous = errors.New("volume has more than one directory")
	// ErrBadName: a name is not one path element.
	ErrBadName = errors.New("not a valid name")
	// ErrUnsafe: something on the way to the volume is a symbolic link or not a directory.
	ErrUnsafe = errors.New("refused to follow")
)

// volumesDir holds a directory for each volume plugin with mounted volumes in the pod.
const volumesDir = "volumes"

// Pods is kubelet's pods directory as this process sees it. It is safe for concurrent use.
type Pods struct {
	fs   afero.Fs
	root string
}

// NewPods returns the pods directory at root, which may be a symbolic link or a mount; nothing below it may be a link.
// Open needs fsys to be the real file system, afero.OsFs; the lookup works on any.
func NewPods(fsys afero.Fs, root string) *Pods { return &Pods{fs: fsys, root: root} }

// find returns the path of a volume's directory below the root, <pod UID>/volumes/<plugin>/<dir>: exactly one plugin's directory
// must have it. The error wraps ErrPodNotFound, ErrNotMounted, ErrAmbiguous, ErrBadName or ErrUnsafe if it is one of these.
//
// The path says where the directory was. What may have happened to it since is up to Open.
func (p *Pods) find(podUID types.UID, dir Dir) (string, error) {
	if err := checkElement("pod UID", string(podUID)); err != nil {
		return "", err
	}
	if err := checkElement("volume directory", dir.Name); err != nil {
		return "", err
	}
	if err := p.checkDir(string(podUID)); err != nil {
		return "", p.podError(string(podUID), err)
	}

	volumes := filepath.Join(string(podUID), volumesDir)
	plugins, err := p.list(volumes) // a pod without volumes may not have it
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	matches, err := p.match(volumes, plugins, dir)
	if err != nil {
		return "", err
	}
	wanted := filepath.Join(p.root, volumes, "*", dir.String())
	switch len(matches) {
	case 1:
		return matches[0], nil
	case 0:
		return "", fmt.Errorf("look for %s: %w, which has %s: kubelet has not mounted it yet, or the pod has ended",
			wanted, ErrNotMounted, p.mounted(volumes, plugins))
	default:
		for i, match := range matches {
			matches[i] = filepath.Join(p.root, match)
		}
		return "", fmt.Errorf("look for %s: %w: %s; rename the volume in the pod, or remove what an earlier kubelet left behind",
			wanted, ErrAmbiguous, strings.Join(matches, ", "))
	}
}

// match returns the paths below the root of the plugins' directories that have dir.
func (p *Pods) match(volumes string, plugins []string, dir Dir) ([]string, error) {
	var matches []string
	for _, plugin := range plugins {
		rel := filepath.Join(volumes, plugin, dir.String())
		err := p.checkDir(rel)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		matches = append(matches, rel)
	}
	return matches, nil
}

// maxMounted bounds how many directories a message lists.
const maxMounted = 10

// mounted says in words which directories the pod's volumes have.
func (p *Pods) mounted(volumes string, plugins []string) string {
	var found []string
	for _, plugin := range plugins {
		dirs, err := p.list(filepath.Join(volumes, plugin))
		if err != nil {
			continue // this is part of a message about something else
		}
		for _, dir := range dirs {
			found = append(found, plugin+"/"+dir)
		}
	}
	switch {
	case len(found) == 0:
		return "no volumes"
	case len(found) > maxMounted:
		return fmt.Sprintf("%s and %d more", strings.Join(found[:maxMounted], ", "), len(found)-maxMounted)
	default:
		return strings.Join(found, ", ")
	}
}

func (p *Pods) podError(podUID string, err error) error {
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	hint := "the pod is gone, or runs on another node"
	if pods, listErr := p.list("."); listErr != nil || len(pods) == 0 {
		hint = "it has no pod at all: check that the agent's DaemonSet mounts kubelet's root directory, " +
			"/var/lib/kubelet/pods unless kubelet runs with --root-dir"
	}
	return fmt.Errorf("look for pod %s in %s: %w; %s", podUID, p.root, ErrPodNotFound, hint)
}

// list returns the names of the directories and links in a directory below the root.
func (p *Pods) list(rel string) ([]string, error) {
	if err := p.checkDir(rel); err != nil {
		return nil, err
	}
	infos, err := afero.ReadDir(p.fs, filepath.Join(p.root, rel))
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	var names []string
	for _, info := range infos {
		if info.IsDir() || info.Mode()&fs.ModeSymlink != 0 {
			names = append(names, info.Name())
		}
	}
	return names, nil
}

// checkDir returns nil if every component of a path below the root is a directory. A missing one gives fs.ErrNotExist.
func (p *Pods) checkDir(rel string) error {
	if rel == "." {
		return nil // the root may be a link
	}
	path := p.root
	for elem := range strings.SplitSeq(rel, "/") {
		path = filepath.Join(path, elem)
		info, err := p.lstat(path)
		if err != nil {
			return fmt.Errorf("look at the volume's directory: %w", err)
		}
		if !info.IsDir() {
			return fmt.Errorf("%s is a %s: %w: a pod may have put it there", path, kind(info.Mode()), ErrUnsafe)
		}
	}
	return nil
}

// lstat does not follow links on file systems that have them.
func (p *Pods) lstat(path string) (fs.FileInfo, error) {
	if l, ok := p.fs.(afero.Lstater); ok {
		info, _, err := l.LstatIfPossible(path)
		return info, err
	}
	return p.fs.Stat(path)
}

func kind(mode fs.FileMode) string {
	if mode&fs.ModeSymlink != 0 {
		return "symbolic link"
	}
	return "file where a directory is expected"
}
