package volumeplugin

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// patience is how long a test waits for what must come. Nothing waits for it to pass.
const patience = 5 * time.Minute

// cluster is an API server with one namespace, in which plugins have the rights of deploy/volume-plugin, and a location.
type cluster struct {
	client.Client

	t          *testing.T
	ns         string
	admin      string // a kubeconfig
	kubeconfig string // of Velero's service account
}

func newCluster(t *testing.T, ns string, server *s3.Server, bucket string) *cluster {
	t.Helper()
	crds, err := controlplane.VeleroCRDs("1.18.3")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"volumepluginbackups", "volumepluginrestores"} {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		read(t, "crds/plimsoll.io_"+name+".yaml", crd)
		crds = append(crds, crd)
	}
	plane := controlplane.ForTest(t, controlplane.Options{CRDs: crds, Dir: t.TempDir()})
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), velerov1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	api, err := client.New(plane.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{Client: api, t: t, ns: ns, admin: plane.Kubeconfig()}
	role, binding := &rbacv1.Role{}, &rbacv1.RoleBinding{}
	read(t, "volume-plugin/rbac.yaml", role)
	read(t, "volume-plugin/rolebinding.yaml", binding)
	role.Namespace, binding.Namespace, binding.Subjects[0].Namespace = ns, ns, ns
	location := &velerov1.BackupStorageLocation{ObjectMeta: c.meta("default"), Spec: velerov1.BackupStorageLocationSpec{
		Provider: "aws", Config: map[string]string{"s3Url": "https://" + server.Endpoint, "region": "us-east-1", "s3ForcePathStyle": "true"},
		Credential: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "cloud"}, Key: "cloud"},
	}}
	location.Spec.ObjectStorage = &velerov1.ObjectStorageLocation{Bucket: bucket, CACert: server.CACert}
	credentials := "[default]\naws_access_key_id = " + server.AccessKey + "\naws_secret_access_key = " + server.SecretKey + "\n"
	c.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, role, binding, location,
		&corev1.Secret{ObjectMeta: c.meta("cloud"), StringData: map[string]string{"cloud": credentials}})
	c.kubeconfig = c.as("velero")
	return c
}

func read(t *testing.T, name string, into any) {
	t.Helper()
	root, err := parts.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", name))
	if err := errors.Join(err, yaml.UnmarshalStrict(text, into)); err != nil {
		t.Fatal(name, err)
	}
}

func (c *cluster) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: c.ns, Name: name}
}

func (c *cluster) create(objects ...client.Object) {
	c.t.Helper()
	for _, o := range objects {
		if err := c.Create(c.t.Context(), o); err != nil {
			c.t.Fatal(err)
		}
	}
}

// as writes a kubeconfig with which one has the rights of a service account.
func (c *cluster) as(account string) string {
	c.t.Helper()
	config, err := clientcmd.LoadFromFile(c.admin)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, user := range config.AuthInfos {
		user.Impersonate = "system:serviceaccount:" + c.ns + ":" + account
		user.ImpersonateGroups = []string{"system:serviceaccounts", "system:authenticated"}
	}
	path := filepath.Join(c.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// backup returns the one VolumePluginBackup, an empty one while there is none.
func (c *cluster) backup() v1alpha1.VolumePluginBackup {
	c.t.Helper()
	list := &v1alpha1.VolumePluginBackupList{}
	if err := c.List(c.t.Context(), list, client.InNamespace(c.ns)); err != nil || len(list.Items) > 1 {
		c.t.Fatalf("%d backups: %v", len(list.Items), err)
	}
	return append(list.Items, v1alpha1.VolumePluginBackup{})[0]
}

// restore returns the one VolumePluginRestore, an empty one while there is none.
func (c *cluster) restore() v1alpha1.VolumePluginRestore {
	c.t.Helper()
	list := &v1alpha1.VolumePluginRestoreList{}
	if err := c.List(c.t.Context(), list, client.InNamespace(c.ns)); err != nil || len(list.Items) > 1 {
		c.t.Fatalf("%d restores: %v", len(list.Items), err)
	}
	return append(list.Items, v1alpha1.VolumePluginRestore{})[0]
}

// process is a program of ours that runs.
type process struct {
	*exec.Cmd

	stdout bytes.Buffer
	log    bytes.Buffer
	wait   func() error
}

// start starts a program, which the test ends, in the cluster's namespace.
func (c *cluster) start(program string, args ...string) *process {
	c.t.Helper()
	p := &process{Cmd: exec.CommandContext(c.t.Context(), program, args...)}
	p.Env = []string{"VELERO_NAMESPACE=" + c.ns, "TMPDIR=" + c.t.TempDir()}
	p.Stdout, p.Stderr = &p.stdout, &p.log
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.Start(); err != nil {
		c.t.Fatal(err)
	}
	p.wait = sync.OnceValue(p.Wait)
	c.t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.wait()
		if c.t.Failed() {
			c.t.Logf("%s %s said:\n%s%s", filepath.Base(program), strings.Join(args, " "), &p.stdout, &p.log)
		}
	})
	return p
}

// run runs a program to its end.
func (c *cluster) run(program string, args ...string) {
	c.t.Helper()
	if err := c.start(program, args...).wait(); err != nil {
		c.t.Fatalf("%s: %v", args, err)
	}
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); !is(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("it does not happen: %s", what)
		}
	}
}
