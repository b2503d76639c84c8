package main

import (
	"slices"
	"strings"
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

func may(group, verbs string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: strings.Split(verbs, " ")}
}

// allow gives a user rights in the cluster's namespace, and rights everywhere, and waits until the API server knows them.
func (c *cluster) allow(user string, here, everywhere []rbacv1.PolicyRule) {
	c.t.Helper()
	name := c.Namespace + "-" + user
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}}
	ref := func(kind string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	for _, o := range []client.Object{
		&rbacv1.Role{ObjectMeta: c.Meta(name), Rules: here},
		&rbacv1.RoleBinding{ObjectMeta: c.Meta(name), Subjects: subjects, RoleRef: ref("Role")},
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: everywhere},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subjects, RoleRef: ref("ClusterRole")},
	} {
		c.Create(o)
	}
	config := rest.CopyConfig(c.Config)
	config.Impersonate.UserName = user
	as, err := client.New(config, client.Options{})
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range here {
		c.awaitRight(as, c.Namespace, &here[i])
	}
	for i := range everywhere {
		c.awaitRight(as, metav1.NamespaceAll, &everywhere[i])
	}
}

// TestRights holds what docs/kubectl.md says of rights: with the first row all is shown that objects say, with notes, and
// with all of them nothing is missing.
func TestRights(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := c.newBackup("nightly")
	pvb := c.backUp(b, "web-0", 1)
	c.backUp(b, "web-1", 1)
	c.Create(&v1alpha1.VolumePluginBackup{
		ObjectMeta: c.Meta("pv-1"), Spec: v1alpha1.VolumePluginBackupSpec{Volume: "pv-1", Backup: "nightly", Plugin: "example.io/disks"},
	})
	ended := &velerov1.Restore{
		ObjectMeta: c.Meta("shop"), Spec: velerov1.RestoreSpec{BackupName: "nightly"},
		Status: velerov1.RestoreStatus{Phase: velerov1.RestorePhaseCompleted},
	}
	c.Create(ended)
	deleted := c.newBackup("deleted")
	c.Change(deleted, func() { deleted.Status.Phase = velerov1.BackupPhaseDeleting })
	objects := may("velero.io", "get list watch", "backups", "restores", "podvolumebackups", "podvolumerestores")
	c.allow("reader", []rbacv1.PolicyRule{objects}, nil)
	c.allow("operator", []rbacv1.PolicyRule{
		objects, may("plimsoll.io", "get list watch", "volumepluginbackups", "volumepluginrestores", "repositorytasks"), may("", "list watch", "pods"), may("", "get", "pods/proxy"),
		may("velero.io", "create get delete", "downloadrequests"), may("velero.io", "list", "backupstoragelocations", "deletebackuprequests"),
	}, []rbacv1.PolicyRule{may("", "get", "pods", "nodes"), may("", "list", "events")})

	for name, test := range map[string]struct {
		user  string
		args  []string
		notes []string // none: nothing is missing
	}{
		"describe a backup":            {"reader", []string{"describe", "backup", "nightly"}, []string{"VolumePluginBackups cannot be read", "Pods cannot be read"}},
		"describe what is stored":      {"reader", []string{"describe", "restore", "shop"}, []string{"the stored list of volumes cannot be read"}},
		"explain a backup":             {"reader", []string{"explain", "backup", "nightly"}, []string{"Events cannot be read", "Pods cannot be read", "Pods of volumes cannot be read", "Nodes cannot be read", "VolumePluginBackups cannot be read"}},
		"explain a volume":             {"reader", []string{"explain", "pvb", pvb.Name}, []string{"Events cannot be read", "Pods of volumes cannot be read", "pods \"web-0\" is forbidden"}},
		"explain a deletion":           {"reader", []string{"explain", "backup", "deleted"}, []string{"DeleteBackupRequests cannot be read"}},
		"explain a deletion, with all": {"operator", []string{"explain", "backup", "deleted"}, nil},
		"describe a backup, with all":  {"operator", []string{"describe", "backup", "nightly"}, nil},
		"describe what is stored, too": {"operator", []string{"describe", "restore", "shop", "--download-timeout=100ms"}, []string{"the DownloadRequest was not answered"}},
		"explain a backup, with all":   {"operator", []string{"explain", "backup", "nightly"}, nil},
		"explain a plugin's, with all": {"operator", []string{"explain", "vpb/pv-1"}, nil},
		"explain a volume, with all":   {"operator", []string{"explain", "pvb", pvb.Name}, nil},
	} {
		out, errOut, code := c.run(append(test.args, "--as", test.user)...)
		if code != 0 {
			t.Errorf("%s: exit code %d: %s", name, code, errOut)
			continue
		}
		for _, note := range test.notes {
			if strings.Count(out, note) != 1 {
				t.Errorf("%s: has not one %q: %s", name, note, out)
			}
		}
		if len(test.notes) == 0 && strings.Contains(out, "Notes:") {
			t.Errorf("%s: there is nothing to note: %s", name, out)
		}
	}
	for user, notes := range map[string]int{"reader": 1, "operator": 0} {
		if _, errOut, code := c.run("top", "--as", user); code != 0 || strings.Count(errOut, "RepositoryTasks cannot be read") != notes {
			t.Errorf("top of the %s: exit code %d: %s", user, code, errOut)
		}
	}
	if _, errOut, code := c.run("describe", "backup", "nightly", "--as", "stranger"); code != 1 || !strings.Contains(errOut, "forbidden") {
		t.Errorf("a stranger: exit code %d: %s", code, errOut)
	}
}

// TestVolumeRights holds what docs/kubectl.md says of the rights of volume: they suffice, and without them nothing is created.
// No agent carries anything out, so that whoever may wait does so until the timeout.
func TestVolumeRights(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.agentPod()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "shop-"}}
	c.Create(namespace)
	shop := *c
	shop.Env = c.In(namespace.Name)
	shop.source(true)
	shop.claim("free")
	waits, _ := shop.waitingPod()
	owner := &velerov1.Restore{ObjectMeta: c.Meta("by-hand"), Spec: velerov1.RestoreSpec{BackupName: "by-hand"}}
	c.Create(owner)
	waits = shop.podWith("db-2", shop.claim("data-db-2"), func(p *corev1.Pod) {
		p.Spec.InitContainers = waits.Spec.InitContainers
		p.Spec.InitContainers[0].Args = []string{v1alpha1.ContainerRestoreWait, string(owner.UID)}
	})
	shop.waits(waits)

	store := []rbacv1.PolicyRule{may("velero.io", "get list", "backupstoragelocations"), may("velero.io", "list", "backuprepositories")}
	restores := append(slices.Clone(store), may("velero.io", "list", "podvolumebackups"))
	pods := []rbacv1.PolicyRule{may("", "get", "pods", "persistentvolumeclaims")}
	for name, test := range map[string]struct {
		args          []string
		velero, their []rbacv1.PolicyRule
	}{
		"backup": {
			[]string{"backup", shop.Namespace + "/db-0", "data", "--to=default"},
			append(slices.Clone(store), may("velero.io", "create get", "podvolumebackups"), may("", "list", "pods")), pods,
		},
		"restore": {
			[]string{"restore", shop.Namespace + "/db-2", "data", "--from=" + strings.Repeat("a", 8), "--location=default"},
			append(slices.Clone(restores), may("velero.io", "list", "restores"), may("velero.io", "create get list", "podvolumerestores")), pods,
		},
		"restore-into-claim": {
			[]string{"restore", "--into-claim=" + shop.Namespace + "/free", "--from=" + strings.Repeat("a", 8), "--location=default"},
			append(slices.Clone(restores), may("apps", "get", "daemonsets"), may("velero.io", "create get delete", "podvolumerestores")),
			[]rbacv1.PolicyRule{may("", "get", "persistentvolumeclaims"), may("", "create delete get list", "pods")},
		},
		"restore-to-claim": { // nobody may read StorageClasses
			[]string{"restore", "--to-claim=" + shop.Namespace + "/new", "--size=1Gi", "--from=" + strings.Repeat("a", 8), "--location=default"},
			append(slices.Clone(restores), may("apps", "get", "daemonsets"), may("velero.io", "create get delete", "podvolumerestores")),
			[]rbacv1.PolicyRule{may("", "create delete get", "persistentvolumeclaims", "pods")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"volume", "--timeout=2s", "--as=" + name}, test.args...)
			if _, errOut, code := c.run(args...); code != 1 || !strings.Contains(errOut, "nothing was created") || !strings.Contains(errOut, "forbidden") {
				t.Errorf("without rights: exit code %d: %s", code, errOut)
			}
			c.allow(name, test.velero, nil)
			shop.allow(name, test.their, nil)
			if out, errOut, code := c.run(args...); code != exitTimeout {
				t.Errorf("exit code %d: %s%s", code, out, errOut)
			}
		})
	}
}
