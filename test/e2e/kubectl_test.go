//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/test/parts"
)

// kubectlApp is a pod that testKubectl leaves running.
const kubectlApp = "e2e-kubectl/app"

// testKubectl does with `kubectl plimsoll` what only a real cluster lets it do: ask the agents through the API server's
// proxy, and restore into a claim through a pod that a kubelet starts.
func (c *cluster) testKubectl(t *testing.T) {
	a := &app{namespace: "e2e-kubectl", name: "app", node: c.nodes[0], uploader: kopia, volumes: []string{disk}, bytes: 160 << 20, seed: 7000}
	c.startApps(t, []*app{a})
	c.watchBackup(t, a)
	c.backUpOnce(t, a)
	c.backUpBySchedule(t, a)
}

// watchBackup watches a backup with the plugin, whose output is no terminal: a line for each change.
func (c *cluster) watchBackup(t *testing.T, a *app) {
	t.Helper()
	backup := c.beginBackup(t, "kubectl")
	watch := c.plimsollCommand(t, "watch", "backup", backup.Name)
	var lines bytes.Buffer
	watch.Stdout, watch.Stderr = &lines, &lines
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	c.requestBackups(t, backup, a)
	var look sync.Once
	var top string
	c.followBackups(t, backup, 1, func(volumes map[types.UID]*volumeHistory) {
		for _, v := range volumes {
			if v.last().percent() > 0 && !v.last().ended() {
				look.Do(func() { top = c.plimsoll(t, "top", "-o", "json") })
			}
		}
	})
	c.endBackup(t, backup)
	if err := watch.Wait(); err != nil {
		t.Errorf("watch ended badly: %v", err)
	}
	for _, want := range []string{"Backup kubectl  InProgress", "e2e-kubectl/app/disk  Transferring", "e2e-kubectl/app/disk  Completed", "Backup kubectl  Completed"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("watch did not say %q:\n%s", want, lines.String())
		}
	}
	c.checkTop(t, top)
}

// checkTop holds that the agents themselves have answered, on all nodes.
func (c *cluster) checkTop(t *testing.T, text string) {
	t.Helper()
	var top struct {
		Nodes   []describe.Node   `json:"nodes"`
		Volumes []describe.Volume `json:"volumes"`
	}
	if err := json.Unmarshal([]byte(text), &top); err != nil {
		t.Fatalf("top: %v\n%s", err, text)
	}
	live := map[string]bool{}
	for _, node := range top.Nodes {
		live[node.Name] = node.Live && node.Ready
	}
	for _, node := range c.nodes {
		if !live[node] {
			t.Errorf("top did not reach the agent of node %s:\n%s", node, text)
		}
	}
	if len(top.Volumes) != 1 || top.Volumes[0].Source != describe.SourceAgent || top.Volumes[0].Node != c.nodes[0] {
		t.Errorf("top did not have the volume from its agent:\n%s", text)
	}
}

// backUpOnce backs up a volume without a Backup, and restores it into a claim.
func (c *cluster) backUpOnce(t *testing.T, a *app) {
	t.Helper()
	var stored describe.Volume
	said := c.plimsoll(t, "volume", "backup", a.namespace+"/"+a.name, disk, "--to", location, "--uploader", restic, "-o", "json")
	if err := json.Unmarshal([]byte(said), &stored); err != nil {
		t.Fatalf("volume backup: %v\n%s", err, said)
	}
	if stored.Phase != string(velerov1.PodVolumeBackupPhaseCompleted) || stored.SnapshotID == "" {
		t.Fatalf("the volume was not backed up: %s", said)
	}
	if list := c.plimsoll(t, "volume", "list", a.namespace); !strings.Contains(list, stored.Name) {
		t.Errorf("volume list does not have %s:\n%s", stored.Name, list)
	}
	into := *a // the same tree
	into.name = "restored"
	claim := c.makeLocalVolume(t, &into)
	c.create(t, claim)
	c.plimsoll(t, "volume", "restore", "--into-claim", into.namespace+"/"+claim.Name, "--from", stored.Name, "--write-sparse-files")

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: into.namespace, Name: into.name, Labels: ownLabels},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Volumes: []corev1.Volume{
				{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: disk, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name}}},
			},
			InitContainers: []corev1.Container{c.container(&into, "fill", into.treeArgs("make"))},
			Containers:     []corev1.Container{c.container(&into, "app", into.treeArgs("verify", "/scratch"))},
		},
	}
	c.create(t, pod)
	if said := lastWords(c.awaitPod(t, pod, corev1.PodSucceeded)); said != "" {
		t.Errorf("the restored volume differs:\n%s", said)
	}
}

// plimsoll runs the plugin and returns what it prints.
func (c *cluster) plimsoll(t *testing.T, args ...string) string {
	t.Helper()
	var out, problems bytes.Buffer
	cmd := c.plimsollCommand(t, args...)
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		t.Fatalf("kubectl plimsoll %s: %v\n%s%s", strings.Join(args, " "), err, out.String(), problems.String())
	}
	return out.String()
}

func (c *cluster) plimsollCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"--kubeconfig", c.config, "--namespace", veleroNamespace}, args...)
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "bin", "kubectl-plimsoll"), args...)
	cmd.Env = []string{"HOME=" + t.TempDir()}
	return cmd
}
