package describe

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// RightAnswer is what the API server says of a right that a service account needs.
type RightAnswer struct {
	Account string // its name
	Right   authorizationv1.ResourceAttributes
	Allowed bool
	Err     error // it did not say
}

// AgentRights are the rights that the node agent's service account needs: those of deploy/node-agent/rbac.yaml.
func AgentRights(namespace string) []authorizationv1.ResourceAttributes {
	r := rights{}
	r.add(namespace, "velero.io", "podvolumebackups podvolumerestores", "get list watch patch")
	r.add(namespace, "velero.io", "backupstoragelocations backups restores", "get")
	r.add(namespace, "velero.io", "backuprepositories", "list")
	r.add(namespace, "plimsoll.io", "repositorytasks", "list")
	r.add(namespace, "", "secrets configmaps", "get")
	r.add(namespace, "coordination.k8s.io", "leases", "get create update delete")
	r.add(namespace, "events.k8s.io", "events", "create")
	r.add("", "", "pods", "get list watch")
	r.add("", "", "persistentvolumeclaims persistentvolumes nodes", "get")
	r.add("", "storage.k8s.io", "csidrivers", "get")
	return r
}

// RepositoryTaskRights are the rights that the service account of the Deployment needs which does RepositoryTasks: those of
// deploy/repository-tasks/rbac.yaml.
func RepositoryTaskRights(namespace string) []authorizationv1.ResourceAttributes {
	r := rights{}
	r.add(namespace, "", "secrets", "get")
	r.add(namespace, "coordination.k8s.io", "leases", "create delete get update")
	r.add(namespace, "events.k8s.io", "events", "create")
	r.add(namespace, "plimsoll.io", "filerequests", "delete get list watch")
	r.add(namespace, "plimsoll.io", "filerequests/status repositorytasks/status", "patch")
	r.add(namespace, "plimsoll.io", "repositorytasks", "delete get list patch watch")
	r.add(namespace, "plimsoll.io", "volumepluginbackups", "list")
	r.add(namespace, "velero.io", "backups backupstoragelocations", "get list")
	r.add(namespace, "velero.io", "backuprepositories", "list")
	r.add(namespace, "velero.io", "podvolumebackups", "delete get list patch")
	r.add(namespace, "velero.io", "podvolumerestores", "list")
	return r
}

// RecordRights are the rights that the service account of the Deployment needs which keeps the records of volume snapshotter plugins:
// those of deploy/records/rbac.yaml.
func RecordRights(namespace string) []authorizationv1.ResourceAttributes {
	r := rights{}
	r.add(namespace, "", "secrets", "get")
	r.add(namespace, "coordination.k8s.io", "leases", "create get update")
	r.add(namespace, "plimsoll.io", "volumepluginbackups", "create get list watch")
	r.add(namespace, "plimsoll.io", "volumepluginbackups/status", "patch")
	r.add(namespace, "plimsoll.io", "volumepluginrestores", "list watch")
	r.add(namespace, "velero.io", "backups", "get list watch")
	r.add(namespace, "velero.io", "backupstoragelocations", "get")
	return r
}

// VolumePluginRights are the rights that the Velero server's service account needs for plugins that record their progress: those of
// deploy/volume-plugin/rbac.yaml.
func VolumePluginRights(namespace string) []authorizationv1.ResourceAttributes {
	r := rights{}
	r.add(namespace, "events.k8s.io", "events", "create")
	r.add(namespace, "plimsoll.io", "volumepluginbackups volumepluginrestores", "create get list patch")
	r.add(namespace, "plimsoll.io", "volumepluginbackups/status volumepluginrestores/status", "patch")
	r.add(namespace, "velero.io", "backups", "get")
	return r
}

// rights are what a service account may do.
type rights []authorizationv1.ResourceAttributes

// add adds each of the verbs on each of the resources, both separated by spaces.
func (r *rights) add(namespace, group, resources, verbs string) {
	for resource := range strings.FieldsSeq(resources) {
		resource, subresource, _ := strings.Cut(resource, "/")
		for verb := range strings.FieldsSeq(verbs) {
			*r = append(*r, authorizationv1.ResourceAttributes{Namespace: namespace, Group: group, Resource: resource, Subresource: subresource, Verb: verb})
		}
	}
}

// ServiceAccounts returns the rights that each service account of the installation needs, by its name.
func (in *Installation) ServiceAccounts() map[string][]authorizationv1.ResourceAttributes {
	accounts := map[string][]authorizationv1.ResourceAttributes{}
	d := &doctor{in: in}
	records := len(d.deployments(pluginRecords)) > 0
	for _, set := range d.agentSets() {
		accounts[account(&set.Spec.Template)] = AgentRights(in.Namespace)
	}
	for i := range in.Deployments {
		template := &in.Deployments[i].Spec.Template
		switch template.Labels[nameLabel] {
		case restoreController:
			// It makes objects of any kind: docs/restore.md, Rights.
			accounts[account(template)] = []authorizationv1.ResourceAttributes{{Group: "*", Resource: "*", Verb: "*"}}
		case repositoryTasks:
			accounts[account(template)] = RepositoryTaskRights(in.Namespace)
		case pluginRecords:
			accounts[account(template)] = RecordRights(in.Namespace)
		}
		if records && in.Deployments[i].Name == "velero" { // whose plugins make the records
			accounts[account(template)] = append(accounts[account(template)], VolumePluginRights(in.Namespace)...)
		}
	}
	return accounts
}

func account(template *corev1.PodTemplateSpec) string {
	if template.Spec.ServiceAccountName == "" {
		return "default"
	}
	return template.Spec.ServiceAccountName
}

func (d *doctor) rights() {
	for _, answer := range d.in.Rights {
		r := &answer.Right
		resource := r.Resource
		if r.Subresource != "" {
			resource += "/" + r.Subresource
		}
		if r.Group != "" {
			resource += "." + r.Group
		}
		where := "in the whole cluster"
		if r.Namespace != "" {
			where = "in namespace " + r.Namespace
		}
		switch {
		case answer.Err != nil:
			d.notChecked(checkRights, "the API server does not say what the service accounts may do: "+answer.Err.Error(), "use an account that may create subjectaccessreviews.authorization.k8s.io", "")
		case !answer.Allowed:
			d.fail(checkRights, "MissingRight", fmt.Sprintf("service account %s may not %s %s %s", answer.Account, r.Verb, resource, where),
				"apply all of the installation again, not the DaemonSet or Deployment alone; look at the namespaces in its RoleBinding and ClusterRoleBinding", "")
		}
	}
	if len(d.in.Rights) > 0 {
		d.passed(checkRights, "the service accounts have the rights that they need")
	}
}

// server looks at what carries out Backups and Restores.
func (d *doctor) server() {
	if d.unread(ReadDeployments) {
		return
	}
	s := &d.in.Server
	controllers := 0
	for i := range d.in.Deployments {
		deployment := &d.in.Deployments[i]
		ours := deployment.Spec.Template.Labels[nameLabel] == restoreController
		if ours {
			controllers++
		}
		if (ours || deployment.Name == "velero") && deployment.Status.ReadyReplicas == 0 {
			d.fail(checkServer, "ServerNotReady", fmt.Sprintf("Deployment %s has no pod that is ready", deployment.Name),
				fmt.Sprintf("read its log: kubectl -n %s logs deployment/%s", d.in.Namespace, deployment.Name), "")
		}
	}
	switch {
	case s.Found && controllers > 0:
		d.fail(checkServer, "TwoServers", "a Velero server and the restore controller share the namespace, and both would carry out Restores", "remove one of them: docs/restore.md", "")
	case !s.Found && controllers == 0:
		d.warn(checkServer, "NoServer", "no Velero server and no restore controller was found in namespace "+d.in.Namespace+": nothing carries out Backups and Restores there",
			"set --namespace; without a server, kubectl plimsoll volume backs up and restores single volumes", "")
	case s.Found:
		d.serverVersion(s)
	}
	d.passed(checkServer, "the server is ready, its version and uploader are supported")
}

func (d *doctor) serverVersion(s *Server) {
	switch {
	case s.Uploader != uploaderRestic && s.Uploader != uploaderKopia:
		d.fail(checkServer, "ServerUploader", fmt.Sprintf("the Velero server has --uploader-type=%s, which is neither restic nor kopia", s.Uploader), "set --uploader-type=kopia in its Deployment", "")
	case s.Uploader == uploaderRestic && s.atLeast(1, 17):
		d.fail(checkServer, "ServerUploader", fmt.Sprintf("Velero %s makes no backups with restic, and does not start with --uploader-type=restic", s.Version),
			"set --uploader-type=kopia, or use a server up to 1.16: docs/restic-repositories.md", "")
	}
	switch {
	case s.Version == "":
		d.notChecked(checkServer, "the tag of the Velero server's image does not tell its version", "compare it with docs/install.md, Which versions", "")
	case !s.atLeast(1, 10) || s.atLeast(1, 19):
		d.warn(checkServer, "ServerVersion", fmt.Sprintf("Velero %s is not among the versions that are supported, 1.10 to 1.18", s.Version), "see docs/install.md, Which versions", "")
	}
}

// tasks looks at what does RepositoryTasks, if it is installed.
func (d *doctor) tasks() {
	if d.unread(ReadDeployments) {
		return
	}
	what := "the Deployment of RepositoryTasks is not installed, which proves backups: docs/repositories.md"
	for _, deployment := range d.deployments(repositoryTasks) {
		what = "the Deployment of RepositoryTasks is ready"
		if deployment.Status.ReadyReplicas == 0 {
			d.fail(checkTasks, "TasksNotReady", fmt.Sprintf("Deployment %s has no pod that is ready: no backup is proven, and no RepositoryTask begins", deployment.Name),
				fmt.Sprintf("read its Events and log: kubectl -n %s describe pods -l %s=%s; the CRDs are in deploy/crds", d.in.Namespace, nameLabel, repositoryTasks), "")
		}
	}
	d.passed(checkTasks, what)
}

// records looks at what keeps the records of volume snapshotter plugins, if it is installed.
func (d *doctor) records() {
	if d.unread(ReadDeployments) {
		return
	}
	installed := d.deployments(pluginRecords)
	for _, deployment := range installed {
		if deployment.Status.ReadyReplicas == 0 {
			d.fail(checkRecords, "RecordsNotReady", fmt.Sprintf("Deployment %s has no pod that is ready: what volume snapshotter plugins recorded does not reach the backups in the bucket", deployment.Name),
				fmt.Sprintf("read its Events and log: kubectl -n %s describe pods -l %s=%s; the CRDs are in deploy/crds", d.in.Namespace, nameLabel, pluginRecords), "")
		}
	}
	if len(installed) > 0 { // without such plugins nobody needs it
		d.passed(checkRecords, "the Deployment that keeps the records of volume snapshotter plugins is ready")
	}
}

// deployments returns those whose pods have a name.
func (d *doctor) deployments(name string) (named []*appsv1.Deployment) {
	for i := range d.in.Deployments {
		if d.in.Deployments[i].Spec.Template.Labels[nameLabel] == name {
			named = append(named, &d.in.Deployments[i])
		}
	}
	return named
}

// helper looks at the image that restored pods get for their init container.
func (d *doctor) helper() {
	if d.unread(ReadDeployments, ReadHelpers, ReadPods) {
		return
	}
	const remedy = "apply the ConfigMap plimsoll-restore-wait of the installation: docs/install.md, The init container of restored pods"
	helpers := d.in.Helpers
	sets := d.agentSets()
	switch {
	case len(helpers) > 1:
		d.fail(checkHelper, "HelperTwice", fmt.Sprintf("ConfigMaps %s and %s both configure the init container of restored pods, for which the server fails restores", helpers[0].Name, helpers[1].Name), "delete one of them", "")
	case len(helpers) == 0 && d.in.Server.Found:
		d.warn(checkHelper, "HelperMissing", "no ConfigMap gives restored pods the node agent's image for their init container: Velero's waits forever for a volume that fails", remedy, "")
	case len(helpers) == 1 && len(sets) > 0:
		d.helperImage(&helpers[0], sets[0])
	}
	for i := range d.in.Pods {
		pod := &d.in.Pods[i]
		for j := range pod.Status.InitContainerStatuses {
			s := &pod.Status.InitContainerStatuses[j]
			if w := s.State.Waiting; s.Name == v1alpha1.ContainerRestoreWait && w != nil && imageFails(w.Reason) {
				d.fail(checkHelper, "HelperNotPulled", fmt.Sprintf("the restored pod %s/%s cannot get the image %s of its init container: %s", pod.Namespace, pod.Name, s.Image, w.Reason),
					"correct the image in the ConfigMap, or give the pod's namespace the registry's Secret; then delete the pod and restore it again", pod.Spec.NodeName)
			}
		}
	}
	d.passed(checkHelper, "restored pods get the node agent's image for their init container")
}

func imageFails(reason string) bool {
	return strings.HasPrefix(reason, "ErrImage") || strings.HasPrefix(reason, "ImagePull") || reason == "InvalidImageName"
}

// helperImage compares the ConfigMap's image with the one that is on each node.
func (d *doctor) helperImage(helper *corev1.ConfigMap, set *appsv1.DaemonSet) {
	image, agent := helper.Data["image"], set.Spec.Template.Spec.Containers[0].Image
	remedy := fmt.Sprintf("set image of ConfigMap %s to %s", helper.Name, agent)
	name := image[strings.LastIndex(image, "/")+1:]
	switch {
	case image == agent:
	case image == "":
		d.warn(checkHelper, "HelperMissing", fmt.Sprintf("ConfigMap %s has no image: restored pods get Velero's for their init container, which waits forever for a volume that fails", helper.Name), remedy, "")
	case !strings.Contains(image, "/"):
		d.fail(checkHelper, "HelperImage", fmt.Sprintf("the image %q of ConfigMap %s has no registry: the server ignores it", image, helper.Name), remedy, "")
	case !strings.Contains(name, ":"):
		d.fail(checkHelper, "HelperImage", fmt.Sprintf("the image %s of ConfigMap %s has no tag: the server adds its own version, which is not one of the node agent's", image, helper.Name), remedy, "")
	case repositoryName(image) == repositoryName(agent):
		d.warn(checkHelper, "HelperImage", fmt.Sprintf("restored pods get the image %s for their init container, and the node agents run %s", image, agent), remedy, "")
	default:
		d.fail(checkHelper, "HelperImage", fmt.Sprintf("restored pods get the image %s for their init container, and the node agents run %s: if it cannot be pulled, or is not Plimsoll's, the pods wait forever", image, agent), remedy, "")
	}
	if image == agent && len(set.Spec.Template.Spec.ImagePullSecrets) > 0 {
		d.warn(checkHelper, "HelperPullSecret", "the node agents pull their image with a Secret that restored pods in other namespaces do not have",
			"give these namespaces the Secret, or let the nodes pull the image without one", "")
	}
}

// repositoryName returns an image without tag and digest.
func repositoryName(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if i := strings.LastIndex(image, ":"); i > strings.LastIndex(image, "/") {
		return image[:i]
	}
	return image
}
