package describe

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// backupInput is a cluster in which volume data of pod shop/web-0 on node n1 can be backed up. change makes it another.
func backupInput(change func(*BackupInput)) *BackupInput {
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	in := &BackupInput{
		Namespace:  "velero",
		Server:     Server{Found: true, Version: "1.18.1", Uploader: "kopia"},
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}},
		Pods: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", Labels: map[string]string{"app": "web"}, Annotations: map[string]string{annotationIn: "data"}},
			Spec: corev1.PodSpec{
				NodeName:   "n1",
				Volumes:    []corev1.Volume{claimed("data", "data-web-0")},
				Containers: []corev1.Container{{Name: "web", VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning},
		}},
		Claims: []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data-web-0"},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv-1"},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		}},
		Persistent: []corev1.PersistentVolume{{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}},
		Nodes:      []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}},
		Agents: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "node-agent-1", Labels: map[string]string{"name": "node-agent", "role": "node-agent"}},
			Spec:       corev1.PodSpec{NodeName: "n1"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: ready},
		}},
		Locations: []velerov1.BackupStorageLocation{{
			ObjectMeta: metav1.ObjectMeta{Name: "default"}, Status: velerov1.BackupStorageLocationStatus{Phase: velerov1.BackupStorageLocationPhaseAvailable},
		}},
	}
	if change != nil {
		change(in)
	}
	return in
}

func claimed(volume, claim string) corev1.Volume {
	return volumeOf(volume, corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}})
}

func volumeOf(name string, source corev1.VolumeSource) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: source}
}

// replace gives the pod's volume another source.
func replace(source corev1.VolumeSource) func(*BackupInput) {
	return func(in *BackupInput) { in.Pods[0].Spec.Volumes[0] = volumeOf("data", source) }
}

// all asks for all volumes, and takes away the annotation.
func all(in *BackupInput) {
	in.Spec.DefaultVolumesToFsBackup = new(true)
	in.Pods[0].Annotations = nil
}

func both(changes ...func(*BackupInput)) func(*BackupInput) {
	return func(in *BackupInput) {
		for _, change := range changes {
			change(in)
		}
	}
}

func preflight(t *testing.T, in *BackupInput) *Preflight {
	t.Helper()
	p, err := PreflightBackup(time.Unix(0, 0), in)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPreflightOfAVolume changes one thing at a time in a cluster where all is well.
func TestPreflightOfAVolume(t *testing.T) {
	t.Parallel()
	hostPath := corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/srv"}}
	secret := corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}
	token := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}}
	block := corev1.PersistentVolumeBlock
	asDevice := func(in *BackupInput) {
		c := &in.Pods[0].Spec.Containers[0]
		c.VolumeMounts, c.VolumeDevices = nil, []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
	}
	phase := func(p corev1.PodPhase) func(*BackupInput) {
		return func(in *BackupInput) { in.Pods[0].Status.Phase = p }
	}
	unmounted := func(in *BackupInput) {
		c := in.Pods[0].Spec.Containers[0]
		in.Pods[0].Spec.InitContainers, in.Pods[0].Spec.Containers[0].VolumeMounts = []corev1.Container{c}, nil
	}
	noAgent := func(in *BackupInput) { in.Agents = nil }
	node := func(change func(*corev1.Node)) func(*BackupInput) {
		return both(noAgent, func(in *BackupInput) { change(&in.Nodes[0]) })
	}
	repository := func(phase velerov1.BackupRepositoryPhase, namespace string) func(*BackupInput) {
		return func(in *BackupInput) {
			in.Repositories = []velerov1.BackupRepository{{
				ObjectMeta: metav1.ObjectMeta{Name: "shop-default-kopia", Labels: map[string]string{
					velerov1.VolumeNamespaceLabel: namespace, velerov1.StorageLocationLabel: "default", velerov1.RepositoryTypeLabel: "kopia",
				}},
				Status: velerov1.BackupRepositoryStatus{Phase: phase, Message: "bucket is away"},
			}}
		}
	}
	tests := map[string]struct {
		change func(*BackupInput)
		want   Decision
		reason string
	}{
		"asked for":                        {nil, DecisionBackUp, "backup-volumes asks for it"},
		"not asked for":                    {func(in *BackupInput) { in.Pods[0].Annotations = nil }, DecisionLeave, "does not name it"},
		"empty annotation":                 {func(in *BackupInput) { in.Pods[0].Annotations[annotationIn] = "" }, DecisionLeave, "does not name it"},
		"all":                              {all, DecisionBackUp, "all volumes are asked for"},
		"all by the server":                {func(in *BackupInput) { in.Server.DefaultVolumesToFSBackup, in.Pods[0].Annotations = true, nil }, DecisionBackUp, "all volumes"},
		"all, by a schedule of old":        {func(in *BackupInput) { in.Spec.DefaultVolumesToRestic, in.Pods[0].Annotations = new(true), nil }, DecisionBackUp, "all volumes"}, //nolint:staticcheck // schedules of old have it
		"all but":                          {both(all, func(in *BackupInput) { in.Pods[0].Annotations = map[string]string{annotationOut: "x,data"} }), DecisionLeave, "backup-volumes-excludes excludes it"},
		"excluded, and all is not":         {func(in *BackupInput) { in.Pods[0].Annotations[annotationOut] = "data" }, DecisionBackUp, "backup-volumes asks for it"},
		"hostPath":                         {replace(hostPath), DecisionCannot, "Velero backs up no hostPath volumes"},
		"hostPath, all":                    {both(all, replace(hostPath)), DecisionLeave, "no hostPath volumes"},
		"secret":                           {replace(secret), DecisionCannot, "no secret volumes"},
		"secret, all":                      {both(all, replace(secret)), DecisionLeave, "no secret volumes"},
		"configMap, all":                   {both(all, replace(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{}})), DecisionLeave, "no configMap volumes"},
		"downwardAPI, all":                 {both(all, replace(corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{}})), DecisionLeave, "no downwardAPI volumes"},
		"token, all":                       {both(all, replace(token)), DecisionLeave, "no projected volumes"},
		"emptyDir, all":                    {both(all, replace(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})), DecisionBackUp, "all volumes"},
		"image, all":                       {both(all, replace(corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "models:1"}})), DecisionCannot, "image volume"},
		"token of before 1.22, all":        {both(all, func(in *BackupInput) { in.Pods[0].Spec.Volumes[0].Name = "default-token-x" }), DecisionLeave, "default-token"},
		"generic ephemeral, without claim": {replace(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}), DecisionCannot, "PersistentVolumeClaim web-0-data does not exist"},
		"claim missing":                    {func(in *BackupInput) { in.Claims = nil }, DecisionCannot, "PersistentVolumeClaim data-web-0 does not exist"},
		"claim not bound": {func(in *BackupInput) {
			in.Claims[0].Spec.VolumeName, in.Claims[0].Status.Phase = "", corev1.ClaimPending
		}, DecisionCannot, "is not bound"},
		"claim lost":                   {func(in *BackupInput) { in.Claims[0].Status.Phase = corev1.ClaimLost }, DecisionCannot, "is Lost: its PersistentVolume pv-1 is gone"},
		"volume missing":               {func(in *BackupInput) { in.Persistent = nil }, DecisionCannot, "PersistentVolume pv-1 of PersistentVolumeClaim data-web-0 does not exist"},
		"volume of type hostPath":      {func(in *BackupInput) { in.Persistent[0].Spec.HostPath = hostPath.HostPath }, DecisionCannot, "pv-1 is of type hostPath"},
		"volume of type hostPath, all": {both(all, func(in *BackupInput) { in.Persistent[0].Spec.HostPath = hostPath.HostPath }), DecisionLeave, "of type hostPath"},
		"block":                        {func(in *BackupInput) { in.Persistent[0].Spec.VolumeMode = &block }, DecisionCannot, "raw block"},
		"device":                       {asDevice, DecisionCannot, "raw block"},
		"device, all":                  {both(all, asDevice), DecisionLeave, "raw block"},
		"mounted by an init container": {unmounted, DecisionCannot, "no container of the pod mounts it"},
		"not mounted, all":             {both(all, unmounted), DecisionLeave, "no container of the pod mounts it"},
		"pod pending":                  {phase(corev1.PodPending), DecisionCannot, "the pod does not run (Pending)"},
		"pod pending, all":             {both(all, phase(corev1.PodPending)), DecisionCannot, "the pod does not run"},
		"pod without node":             {func(in *BackupInput) { in.Pods[0].Spec.NodeName = "" }, DecisionCannot, "has no node yet"},
		"pod succeeded":                {phase(corev1.PodSucceeded), DecisionCannot, "the pod has ended (Succeeded)"},
		"pod failed, all":              {both(all, phase(corev1.PodFailed)), DecisionLeave, "the pod has ended (Failed)"},
		"pod terminating":              {func(in *BackupInput) { in.Pods[0].DeletionTimestamp = &metav1.Time{} }, DecisionCannot, "being deleted"},
		"no agent":                     {noAgent, DecisionCannot, "no node agent runs on node n1"},
		"no agent, all":                {both(all, noAgent), DecisionCannot, "no node agent runs on node n1"},
		"agent elsewhere":              {func(in *BackupInput) { in.Agents[0].Spec.NodeName = "n2" }, DecisionCannot, "no node agent runs on node n1"},
		"agent terminating":            {func(in *BackupInput) { in.Agents[0].DeletionTimestamp = &metav1.Time{} }, DecisionCannot, "no node agent"},
		"agent not ready":              {func(in *BackupInput) { in.Agents[0].Status.Conditions = nil }, DecisionBackUp, "until the node agent node-agent-1 is ready"},
		"agent without the label of 1.16": {
			func(in *BackupInput) { delete(in.Agents[0].Labels, "role") }, DecisionCannot, "no node agent runs on node n1",
		},
		"agent with the label of 1.15": {both(func(in *BackupInput) { delete(in.Agents[0].Labels, "role"); in.Server.Version = "1.15.2" }), DecisionBackUp, "asks for it"},
		"Windows":                      {node(func(n *corev1.Node) { n.Labels = map[string]string{corev1.LabelOSStable: "windows"} }), DecisionCannot, "runs Windows: Plimsoll's is for Linux"},
		"Windows, 1.16": {func(in *BackupInput) {
			in.Server.Version, in.Nodes[0].Labels = "1.16.2", map[string]string{corev1.LabelOSStable: "windows"}
		}, DecisionCannot, "where Velero 1.16 backs up no files"},
		"virtual kubelet":       {node(func(n *corev1.Node) { n.Labels = map[string]string{"type": "virtual-kubelet"} }), DecisionCannot, "virtual"},
		"Fargate":               {node(func(n *corev1.Node) { n.Labels = map[string]string{"eks.amazonaws.com/compute-type": "fargate"} }), DecisionCannot, "virtual"},
		"virtual by taint":      {node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "virtual-kubelet.io/provider"}} }), DecisionCannot, "virtual"},
		"repository not ready":  {repository(velerov1.BackupRepositoryPhaseNotReady, "shop"), DecisionCannot, "BackupRepository shop-default-kopia is not ready: bucket is away"},
		"repository ready":      {repository(velerov1.BackupRepositoryPhaseReady, "shop"), DecisionBackUp, "asks for it"},
		"repository of another": {repository(velerov1.BackupRepositoryPhaseNotReady, "bank"), DecisionBackUp, "asks for it"},
		"name with spaces":      {func(in *BackupInput) { in.Pods[0].Annotations[annotationIn] = "logs, data" }, DecisionLeave, "does not name it"},
		"namespace not included": {func(in *BackupInput) {
			in.Spec.IncludedNamespaces, in.Namespaces = []string{"bank"}, append(in.Namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "bank"}})
		}, DecisionLeave, "asks for it, but its namespace is not included"},
		"namespace included by a star": {func(in *BackupInput) { in.Spec.IncludedNamespaces = []string{"sh*"} }, DecisionBackUp, "asks for it"},
		"namespace excluded":           {func(in *BackupInput) { in.Spec.ExcludedNamespaces = []string{"shop"} }, DecisionLeave, "its namespace is excluded"},
		"namespace labelled": {func(in *BackupInput) {
			in.Namespaces[0].Labels = map[string]string{excludeLabel: "true"}
		}, DecisionLeave, "its namespace has the label velero.io/exclude-from-backup=true"},
		"pod labelled": {func(in *BackupInput) { in.Pods[0].Labels[excludeLabel] = "true" }, DecisionLeave, "the pod has the label velero.io/exclude-from-backup=true"},
		"selector": {func(in *BackupInput) {
			in.Spec.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
		}, DecisionLeave, "the label selector does not match the pod"},
		"one of the selectors": {func(in *BackupInput) {
			in.Spec.OrLabelSelectors = []*metav1.LabelSelector{{MatchLabels: map[string]string{"app": "db"}}, {MatchLabels: map[string]string{"app": "web"}}}
		}, DecisionBackUp, "asks for it"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := preflight(t, backupInput(tc.change))
			v := p.Volumes[0]
			if v.Decision != tc.want || !strings.Contains(v.Reason, tc.reason) {
				t.Errorf("got %q, %q, want %q, %q", v.Decision, v.Reason, tc.want, tc.reason)
			}
			if len(p.Problems) > 0 {
				t.Errorf("problems %q", p.Problems)
			}
			if cannot := len(p.Volumes) == 1 && tc.want == DecisionCannot; cannot && p.OK() || len(p.Volumes) == 1 && !cannot && !p.OK() {
				t.Errorf("OK is %v", p.OK())
			}
		})
	}
}

// TestPreflightOfABackup is about what concerns more than one volume.
func TestPreflightOfABackup(t *testing.T) {
	t.Parallel()
	location := func(change func(*velerov1.BackupStorageLocation)) func(*BackupInput) {
		return func(in *BackupInput) { change(&in.Locations[0]) }
	}
	tests := map[string]struct {
		change        func(*BackupInput)
		problem, note string
	}{
		"all is well":         {},
		"restic and 1.17":     {change: func(in *BackupInput) { in.Server.Uploader, in.Server.Version = "restic", "1.17.0" }, problem: "Velero 1.17.0 makes no backups with restic"},
		"restic and 1.16":     {change: func(in *BackupInput) { in.Server.Uploader, in.Server.Version = "restic", "1.16.2" }},
		"restic and anything": {change: func(in *BackupInput) { in.Server.Uploader, in.Server.Version = "restic", "" }, note: "which version the Velero server is"},
		"another uploader":    {change: func(in *BackupInput) { in.Server.Uploader = "rsync" }, problem: `"rsync" is neither restic nor kopia`},
		"no server":           {change: func(in *BackupInput) { in.Server = Server{Uploader: "kopia"} }, note: "no Deployment of a Velero server was found in namespace velero"},
		"no location":         {change: func(in *BackupInput) { in.Spec.StorageLocation = "s3" }, problem: "BackupStorageLocation s3 does not exist in namespace velero"},
		"not available": {change: location(func(l *velerov1.BackupStorageLocation) {
			l.Status.Phase, l.Status.Message = velerov1.BackupStorageLocationPhaseUnavailable, "no such bucket"
		}), problem: "BackupStorageLocation default is Unavailable: no such bucket"},
		"not checked": {change: location(func(l *velerov1.BackupStorageLocation) { l.Status.Phase = "" }), problem: "default is not checked yet"},
		"not checked, and no server": {change: func(in *BackupInput) {
			in.Server.Found, in.Locations[0].Status.Phase = false, ""
		}, note: "nobody has checked yet"},
		"read-only": {change: location(func(l *velerov1.BackupStorageLocation) {
			l.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly
		}), problem: "default is read-only"},
		"the server's default": {change: func(in *BackupInput) { in.Server.DefaultLocation = "tape" }, problem: "BackupStorageLocation tape does not exist"},
		"the marked default": {change: func(in *BackupInput) {
			in.Server.DefaultLocation, in.Locations[0].Spec.Default = "tape", true
		}},
		"a namespace that is not there": {change: func(in *BackupInput) {
			in.Spec.IncludedNamespaces = []string{"shop", "shpo", "b*"}
		}, problem: "namespace shpo is asked for and does not exist"},
		"resource policies": {change: func(in *BackupInput) {
			in.Spec.ResourcePolicy = &corev1.TypedLocalObjectReference{Kind: "configmap", Name: "policies"}
		}, note: "the resource policies of configmap policies are not evaluated here"},
		"an agent without a memory limit": {change: func(in *BackupInput) {
			in.Agents[0].Spec.Containers = []corev1.Container{{Name: "node-agent"}}
		}, note: "the node agent has no memory limit on n1: a huge volume may take all memory of its node"},
		"an agent with a memory limit": {change: func(in *BackupInput) {
			limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("2Gi")}
			in.Agents[0].Spec.Containers = []corev1.Container{{Name: "node-agent", Resources: corev1.ResourceRequirements{Limits: limits}}}
		}},
		"volume policies of the server": {change: func(in *BackupInput) { in.Server.VolumePolicies = "all" }, note: "ConfigMap all are not evaluated"},
		"resources":                     {change: func(in *BackupInput) { in.Spec.ExcludedResources = []string{"pods"} }, note: "the resources to include and exclude are not evaluated"},
		"excludes what is not there": {change: both(all, func(in *BackupInput) {
			in.Pods[0].Annotations = map[string]string{annotationOut: " data"}
		}), note: `backup-volumes-excludes names " data", but the pod has no such volume; Velero takes the spaces around "data" as part of the name`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := preflight(t, backupInput(tc.change))
			check := func(what, want string, got []string) {
				if found := strings.Contains(strings.Join(got, "\n"), want); !found || want == "" && len(got) > 0 {
					t.Errorf("%s %q, want %q", what, got, want)
				}
			}
			check("problems", tc.problem, p.Problems)
			check("notes", tc.note, p.Notes)
			if p.OK() != (tc.problem == "") {
				t.Errorf("OK is %v", p.OK())
			}
		})
	}
}

func TestPreflightOfASharedClaim(t *testing.T) {
	t.Parallel()
	in := backupInput(func(in *BackupInput) {
		third, second := in.Pods[0].DeepCopy(), in.Pods[0].DeepCopy()
		third.Name, second.Name = "web-2", "web-1"
		second.Status.Phase = corev1.PodPending // Velero goes on to the next one
		in.Pods[0].Status.Phase = corev1.PodPending
		last := third.DeepCopy()
		last.Name = "web-3"
		in.Pods = []corev1.Pod{*last, *third, *second, in.Pods[0]}
	})
	var got []string
	for _, v := range preflight(t, in).Volumes {
		got = append(got, fmt.Sprintf("%s %s %s", v.Pod, v.Decision, v.Reason))
	}
	const asks = "the annotation backup.velero.io/backup-volumes asks for it"
	want := []string{
		"web-0 cannot " + asks + ", but the pod does not run (Pending)",
		"web-1 cannot " + asks + ", but the pod does not run (Pending)",
		"web-2 fs-backup " + asks,
		"web-3 left out PersistentVolumeClaim data-web-0 is backed up once, with pod web-2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}

func TestPreflightKnowsTheLastTime(t *testing.T) {
	t.Parallel()
	begin := time.Unix(1700000000, 0)
	backup := func(hour int, change func(*Volume)) Volume {
		v := Volume{Kind: KindPodVolumeBackup, PodNamespace: "shop", Pod: "web-0", Volume: "data", SnapshotID: "4f2c1a9b"}
		v.Started = begin.Add(time.Duration(hour) * time.Hour)
		v.Completed = v.Started.Add(3 * time.Minute)
		v.Progress.State, v.Progress.BytesDone = "Completed", int64(hour)<<30
		if change != nil {
			change(&v)
		}
		return v
	}
	tests := map[string]struct {
		volumes []Volume
		want    string
	}{
		"never":         {nil, "asks for it"},
		"the last one":  {[]Volume{backup(1, nil), backup(3, nil), backup(2, nil)}, "asks for it; last time 3.0 GiB in 3m"},
		"it was empty":  {[]Volume{backup(1, nil), backup(2, func(v *Volume) { v.SnapshotID = "" })}, "asks for it; it was empty last time, which gives no snapshot"},
		"others":        {[]Volume{backup(1, func(v *Volume) { v.Pod = "web-1" }), backup(1, func(v *Volume) { v.Kind = KindPodVolumeRestore })}, "asks for it"},
		"failed":        {[]Volume{backup(1, func(v *Volume) { v.Progress.State = "Failed" })}, "asks for it"},
		"without times": {[]Volume{backup(1, func(v *Volume) { v.Started = time.Time{} })}, "asks for it; last time 1.0 GiB"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := preflight(t, backupInput(func(in *BackupInput) { in.Volumes = tc.volumes }))
			if got := p.Volumes[0].Reason; !strings.HasSuffix(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPreflightOfNamesWithoutVolumes(t *testing.T) {
	t.Parallel()
	p := preflight(t, backupInput(func(in *BackupInput) { in.Pods[0].Annotations[annotationIn] = "data, data,gone" }))
	var got []string
	for _, v := range p.Volumes[1:] {
		got = append(got, fmt.Sprintf("%q %s %s", v.Volume, v.Decision, v.Reason))
	}
	const missing = "cannot the annotation backup.velero.io/backup-volumes names it, but the pod has no such volume"
	want := []string{`" data" ` + missing + `; Velero takes the spaces around "data" as part of the name`, `"gone" ` + missing}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
}

func TestPreflightOfNodes(t *testing.T) {
	t.Parallel()
	p := preflight(t, backupInput(func(in *BackupInput) {
		second := in.Pods[0].DeepCopy()
		second.Name, second.Spec.NodeName = "web-1", "n2"
		second.Spec.Volumes[0] = volumeOf("data", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
		in.Pods = append(in.Pods, *second)
		agent := in.Agents[0].DeepCopy()
		agent.Name, agent.Spec.NodeName, agent.Status.Conditions = "node-agent-2", "n2", nil
		in.Agents = append(in.Agents, *agent)
		running, ended := Volume{Node: "n1"}, Volume{Node: "n1"}
		running.Progress.State, ended.Progress.State = "Transferring", "Completed"
		in.Volumes = []Volume{running, ended}
	}))
	want := []PlannedNode{
		{Name: "n1", Agent: "node-agent-1", Ready: true, ToBackUp: 1, Unfinished: 1, Note: "its volumes come after those that are unfinished"},
		{Name: "n2", Agent: "node-agent-2", ToBackUp: 1, Note: "the node agent is not ready: its volumes wait until it is"},
	}
	if diff := cmp.Diff(want, p.Nodes); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}

func TestPreflightRefusesBadSelectors(t *testing.T) {
	t.Parallel()
	in := backupInput(func(in *BackupInput) {
		in.Spec.LabelSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}
	})
	if _, err := PreflightBackup(time.Now(), in); err == nil {
		t.Error("no error for a selector with an operator that does not exist")
	}
}

// TestPreflightPrint has names that would steer a terminal.
func TestPreflightPrint(t *testing.T) {
	t.Parallel()
	p := preflight(t, backupInput(func(in *BackupInput) {
		pod := &in.Pods[0]
		pod.Annotations[annotationIn] = "data,\x1b[2Jgone"
		pod.Spec.Volumes = append(pod.Spec.Volumes, volumeOf("token", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}),
			volumeOf("cache", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}))
		in.Locations[0].Status = velerov1.BackupStorageLocationStatus{Phase: velerov1.BackupStorageLocationPhaseUnavailable, Message: "a\nb\tc"}
		in.Server.VolumePolicies = "all"
	}))
	const asks = "the annotation backup.velero.io/backup-volumes "
	want := `Backup with kopia to BackupStorageLocation default, only volumes that the annotation backup.velero.io/backup-volumes names

POD          VOLUME        CLAIM        NODE   DECISION    REASON
shop/web-0   \x1b[2Jgone   -            n1     cannot      ` + asks + `names it, but the pod has no such volume
shop/web-0   data          data-web-0   n1     fs-backup   ` + asks + `asks for it
shop/web-0   cache         -            n1     left out    ` + asks + `does not name it

1 volume is not shown: what is in them comes from Secrets, ConfigMaps and other objects

NODE   NODE AGENT     READY   TO BACK UP   UNFINISHED   NOTE
n1     node-agent-1   true    1            0            -

Problems:
- BackupStorageLocation default is Unavailable: a\nb\tc

Notes:
- the server's volume policies of ConfigMap all are not evaluated here: they may back up or leave out more volumes than is said here

1 volume is backed up, 1 cannot be, 2 left out; the backup would fail, for the problems above
`
	var out bytes.Buffer
	if err := p.Print(&out, false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("text (-want +got):\n%s", diff)
	}
	out.Reset()
	if err := p.Print(&out, true); err != nil || !strings.Contains(out.String(), "token ") {
		t.Errorf("the token is not shown, %v:\n%s", err, &out)
	}
}

func TestOfServer(t *testing.T) {
	t.Parallel()
	deployment := func(image string, args ...string) *appsv1.Deployment {
		return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "sidecar"}, {Name: "velero", Image: image, Command: []string{"/velero"}, Args: args}},
		}}}}
	}
	tests := map[string]struct {
		deployment *appsv1.Deployment
		want       Server
	}{
		"none":              {nil, Server{Uploader: "kopia"}},
		"something else":    {&appsv1.Deployment{}, Server{Uploader: "kopia"}},
		"1.16":              {deployment("velero/velero:v1.16.2", "server"), Server{Found: true, Version: "1.16.2", Uploader: "restic"}},
		"1.17":              {deployment("velero/velero:v1.17.0-rc.1", "server"), Server{Found: true, Version: "1.17.0", Uploader: "kopia"}},
		"port and digest":   {deployment("registry:5000/velero:v1.18@sha256:abc", "server"), Server{Found: true, Version: "1.18", Uploader: "kopia"}},
		"no version":        {deployment("registry:5000/velero", "server"), Server{Found: true, Uploader: "kopia"}},
		"another tag":       {deployment("velero/velero:main", "server"), Server{Found: true, Uploader: "kopia"}},
		"flags":             {deployment("velero:v1.16.0", "server", "--uploader-type=kopia", "--default-volumes-to-fs-backup", "--default-backup-storage-location", "tape", "--global-backup-volume-policies-configmap=all"), Server{Found: true, Version: "1.16.0", Uploader: "kopia", DefaultVolumesToFSBackup: true, DefaultLocation: "tape", VolumePolicies: "all"}},
		"not all volumes":   {deployment("velero:v1.18.0", "server", "--default-volumes-to-fs-backup=false"), Server{Found: true, Version: "1.18.0", Uploader: "kopia"}},
		"flag without text": {deployment("velero:v1.18.0", "server", "--default-volumes-to-fs-backup", "--uploader-type=kopia"), Server{Found: true, Version: "1.18.0", Uploader: "kopia", DefaultVolumesToFSBackup: true}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, OfServer(tc.deployment)); diff != "" {
				t.Errorf("server (-want +got):\n%s", diff)
			}
		})
	}
}
