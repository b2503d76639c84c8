package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// Meta names an object in the namespace.
func (e *Env) Meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: e.Namespace, Name: name}
}

// Create creates objects.
func (e *Env) Create(objects ...client.Object) {
	e.T.Helper()
	for _, o := range objects {
		if err := e.Client.Create(e.Context(), o); err != nil {
			e.T.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

// CreateNamespaces creates namespaces beside the test's own.
func (e *Env) CreateNamespaces(names ...string) {
	e.T.Helper()
	for _, name := range names {
		e.Create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// CreateSecret creates a Secret in the namespace.
func (e *Env) CreateSecret(name string, data map[string]string) {
	e.T.Helper()
	e.Create(&corev1.Secret{ObjectMeta: e.Meta(name), StringData: data})
}

// Get reads an object.
func (e *Env) Get(o client.Object) {
	e.T.Helper()
	if err := e.Client.Get(e.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		e.T.Fatalf("get %T %s: %v", o, o.GetName(), err)
	}
}

// Patch applies a JSON merge patch to an object.
func (e *Env) Patch(o client.Object, patch string) {
	e.T.Helper()
	if err := e.Client.Patch(e.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		e.T.Fatalf("patch %T %s: %v", o, o.GetName(), err)
	}
}

// Change patches an object, and its status where that is a subresource, with what change makes of it.
func (e *Env) Change(o client.Object, change func()) {
	e.T.Helper()
	before := client.MergeFrom(o.DeepCopyObject().(client.Object))
	change()
	status := o.DeepCopyObject().(client.Object)
	if err := e.Client.Patch(e.Context(), o, before); err != nil {
		e.T.Fatalf("patch %T %s: %v", o, o.GetName(), err)
	}
	if err := client.IgnoreNotFound(e.Client.Status().Patch(e.Context(), status, before)); err != nil {
		e.T.Fatalf("patch the status of %T %s: %v", o, o.GetName(), err)
	}
}

// Delete deletes an object.
func (e *Env) Delete(o client.Object) {
	e.T.Helper()
	if err := e.Client.Delete(e.Context(), o); err != nil {
		e.T.Fatalf("delete %T %s: %v", o, o.GetName(), err)
	}
}

// DirectoryLocation returns a BackupStorageLocation whose bucket is a directory, for Create.
func (e *Env) DirectoryLocation(name, dir string) *velerov1.BackupStorageLocation {
	return &velerov1.BackupStorageLocation{ObjectMeta: e.Meta(name), Spec: velerov1.BackupStorageLocationSpec{
		Provider:    "velero.io/fs",
		Config:      map[string]string{"fspath": dir, "resticRepoPrefix": filepath.Join(dir, "restic")},
		StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: "bucket"}},
	}}
}

// BucketLocation returns a BackupStorageLocation on an S3 server, for Create, and creates the Secret with its credentials.
func (e *Env) BucketLocation(name string, server *s3.Server, bucket string) *velerov1.BackupStorageLocation {
	e.T.Helper()
	secret := name + "-credentials"
	e.CreateSecret(secret, map[string]string{
		"cloud": "[default]\naws_access_key_id = " + server.AccessKey + "\naws_secret_access_key = " + server.SecretKey + "\n",
	})
	return &velerov1.BackupStorageLocation{ObjectMeta: e.Meta(name), Spec: velerov1.BackupStorageLocationSpec{
		Provider: "aws",
		Config:   map[string]string{"s3Url": "https://" + server.Endpoint, "region": "us-east-1", "s3ForcePathStyle": "true"},
		Credential: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: "cloud",
		},
		StorageType: velerov1.StorageType{ObjectStorage: &velerov1.ObjectStorageLocation{Bucket: bucket, CACert: server.CACert}},
	}}
}

// readDeploy reads an object from a file in deploy/.
func (e *Env) readDeploy(name string, into any) {
	e.T.Helper()
	root, err := parts.Root()
	if err != nil {
		e.T.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", name))
	if err := errors.Join(err, yaml.UnmarshalStrict(text, into)); err != nil {
		e.T.Fatalf("%s: %v", name, err)
	}
}

// GrantPluginRights gives the namespace's service account velero the rights of deploy/volume-plugin.
func (e *Env) GrantPluginRights() {
	e.T.Helper()
	role, binding := &rbacv1.Role{}, &rbacv1.RoleBinding{}
	e.readDeploy("volume-plugin/rbac.yaml", role)
	e.readDeploy("volume-plugin/rolebinding.yaml", binding)
	role.Namespace, binding.Namespace, binding.Subjects[0].Namespace = e.Namespace, e.Namespace, e.Namespace
	e.Create(role, binding)
	e.AwaitRules("system:serviceaccount:"+e.Namespace+":"+binding.Subjects[0].Name, role.Rules...)
}

// AwaitRules waits until the API server lets a user do what rules of a role in the namespace allow: it learns of a role and its binding a
// moment after they were made.
func (e *Env) AwaitRules(user string, rules ...rbacv1.PolicyRule) {
	e.T.Helper()
	for i := range rules {
		rule := &rules[i]
		asked := &authorizationv1.ResourceAttributes{Namespace: e.Namespace, Group: rule.APIGroups[0], Verb: rule.Verbs[0]}
		asked.Resource, asked.Subresource, _ = strings.Cut(rule.Resources[0], "/")
		if len(rule.ResourceNames) > 0 {
			asked.Name = rule.ResourceNames[0]
		}
		e.Eventually(user+" may "+asked.Verb+" "+rule.Resources[0], func() bool {
			review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: asked}}
			return e.Client.Create(e.Context(), review) == nil && review.Status.Allowed
		})
	}
}

// SetInitContainer reports the state of a restored pod's init container, as kubelet does.
func (e *Env) SetInitContainer(pod *corev1.Pod, state corev1.ContainerState) {
	e.T.Helper()
	before := client.MergeFrom(pod.DeepCopy())
	pod.Status.Phase = corev1.PodPending
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: v1alpha1.ContainerRestoreWait, State: state, Image: "agent", ImageID: "agent"}}
	if err := e.Client.Status().Patch(e.Context(), pod, before); err != nil {
		e.T.Fatal(err)
	}
}

// Node is a node without kubelet, whose part the test plays.
type Node struct {
	env  *Env
	Name string
	Pods string // kubelet's pods directory
}

// NewNode returns a node whose pods directory is dir. It has no object.
func (e *Env) NewNode(name, dir string) *Node { return &Node{env: e, Name: name, Pods: dir} }

// Pod creates a pod of the namespace on the node, with emptyDir volumes and their directories.
func (n *Node) Pod(name string, volumes ...string) *corev1.Pod {
	n.env.T.Helper()
	return n.pod(name, nil, volumes)
}

// RestorablePod is Pod with the init container that a Velero server gives to pods whose volumes are restored.
func (n *Node) RestorablePod(name string, volumes ...string) *corev1.Pod {
	n.env.T.Helper()
	return n.pod(name, []corev1.Container{{Name: v1alpha1.ContainerRestoreWait, Image: "agent"}}, volumes)
}

func (n *Node) pod(name string, inits []corev1.Container, volumes []string) *corev1.Pod {
	n.env.T.Helper()
	pod := &corev1.Pod{ObjectMeta: n.env.Meta(name), Spec: corev1.PodSpec{
		NodeName: n.Name, InitContainers: inits, Containers: []corev1.Container{{Name: "main", Image: "main"}},
	}}
	for _, v := range volumes {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: v, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	n.env.Create(pod)
	for _, v := range volumes {
		if err := os.MkdirAll(n.Volume(pod, v), 0o755); err != nil {
			n.env.T.Fatal(err)
		}
	}
	return pod
}

// Volume returns the directory of a pod's emptyDir volume.
func (n *Node) Volume(pod *corev1.Pod, name string) string {
	return filepath.Join(n.Pods, string(pod.UID), "volumes", "kubernetes.io~empty-dir", name)
}
