package describe

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
)

// Server is what can be told of a Velero server from its Deployment.
type Server struct {
	Found                    bool
	Version                  string // 1.17.2; empty: not known
	Uploader                 string // restic or kopia
	DefaultVolumesToFSBackup bool
	DefaultLocation          string // empty: default
	VolumePolicies           string // a ConfigMap with policies for all backups
}

// versionTag is what the tags of Velero's images begin with.
var versionTag = regexp.MustCompile(`^v?(\d+\.\d+(\.\d+)?)`)

// OfServer reads the Deployment of a Velero server; nil stands for none.
func OfServer(d *appsv1.Deployment) Server {
	s := Server{Uploader: uploaderKopia}
	if d == nil {
		return s
	}
	containers := d.Spec.Template.Spec.Containers
	i := slices.IndexFunc(containers, func(c corev1.Container) bool { return c.Name == "velero" })
	if i < 0 {
		return s
	}
	s.Found, s.Version = true, imageVersion(containers[i].Image)
	if s.Version != "" && !s.atLeast(1, 17) {
		s.Uploader = uploaderRestic // docs/contracts/velero-node-agent.md 2.1
	}
	s.readFlags(append(slices.Clone(containers[i].Command), containers[i].Args...))
	return s
}

// imageVersion returns the version that an image's tag begins with.
func imageVersion(image string) string {
	image, _, _ = strings.Cut(image, "@")
	name := image[strings.LastIndex(image, "/")+1:]
	_, tag, _ := strings.Cut(name, ":")
	if found := versionTag.FindStringSubmatch(tag); found != nil {
		return found[1]
	}
	return ""
}

// readFlags reads --flag=value and --flag value.
func (s *Server) readFlags(args []string) {
	for i, arg := range args {
		name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !given && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			value = args[i+1]
		}
		switch name {
		case "uploader-type":
			s.Uploader = value
		case "default-volumes-to-fs-backup", "default-volumes-to-restic":
			on, err := strconv.ParseBool(value)
			s.DefaultVolumesToFSBackup = !given || on && err == nil // as for all flags of its kind, a value is behind = only
		case "default-backup-storage-location":
			s.DefaultLocation = value
		case "global-backup-volume-policies-configmap":
			s.VolumePolicies = value
		}
	}
}

// atLeast reports whether the server is known to be of a version or a later one.
func (s *Server) atLeast(major, minor uint) bool {
	v, err := version.ParseGeneric(s.Version)
	return err == nil && v.AtLeast(version.MajorMinor(major, minor))
}

// is reports whether the server is known to be of a version.
func (s *Server) is(major, minor uint) bool {
	return s.atLeast(major, minor) && !s.atLeast(major, minor+1)
}

// finds reports whether the server recognizes a pod as a node agent (docs/contracts/velero-node-agent.md 2.1). If the server's
// version is unknown, either label is enough.
func (s *Server) finds(agent *corev1.Pod) bool {
	name, role := agent.Labels["name"] == nodeAgent, agent.Labels["role"] == nodeAgent
	switch {
	case agent.Status.Phase != corev1.PodRunning || agent.DeletionTimestamp != nil:
		return false
	case s.Version == "":
		return name || role
	case s.atLeast(1, 16):
		return role
	default:
		return name
	}
}

const nodeAgent = "node-agent"
