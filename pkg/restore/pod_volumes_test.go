package restore

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// waitYAML is the init container that waits for volume "data", with a place for its security context.
func waitYAML(securityContext string) string {
	return `{name: restore-wait, image: "example.test/node-agent:1", command: [/velero-restore-helper], args: [11111111-2222-3333-4444-555555555555],
		env: [{name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}, {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}],
		volumeMounts: [{name: data, mountPath: /restores/data}],
		resources: {requests: {cpu: 100m, memory: 128Mi}, limits: {cpu: 100m, memory: 128Mi}},
		securityContext: ` + securityContext + `}`
}

const restricted = `allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}`

func TestPodsWaitForTheirVolumes(t *testing.T) {
	t.Parallel()
	record := []velerov1.PodVolumeBackup{podVolumeBackup("data", "", "s1")}
	lacking := []velerov1.PodVolumeBackup{podVolumeBackup("data", "", "s1")}
	lacking[0].Status.Message = "snapshot s1 was saved without 4 files"
	failed := []velerov1.PodVolumeBackup{podVolumeBackup("data", "", "s1")}
	failed[0].Status.Phase = velerov1.PodVolumeBackupPhaseFailed
	notStored := []velerov1.PodVolumeBackup{podVolumeBackup("data", "", "")}
	notStored[0].Status.Phase = velerov1.PodVolumeBackupPhaseFailed
	emptied := []velerov1.PodVolumeBackup{podVolumeBackup("data", "", "")}
	emptied[0].Status.Message = "volume was empty so no snapshot was taken; 40 entries of the volume vanished while it was read"
	leavesClaims := &selection{resources: filter{excludes: []string{"persistentvolumeclaims"}}}
	for _, test := range []struct {
		name      string
		records   []velerov1.PodVolumeBackup
		selection *selection
		item      string
		want      expectation
	}{{
		name:    "before all other init containers, restricted by default",
		records: record,
		item: `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}],
			initContainers: [{name: restic-wait, args: [old]}, {name: mine}]}}`,
		want: expectation{item: `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}],
			initContainers: [` + waitYAML(`{`+restricted+`, runAsNonRoot: true, runAsUser: 1000}`) + `, {name: mine}]}}`},
	}, {
		name:    "as the first container",
		records: record,
		item: `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}],
			containers: [{name: a, securityContext: {runAsUser: 26}}, {name: b, securityContext: {privileged: true}}]}}`,
		want: expectation{item: `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}],
			containers: [{name: a, securityContext: {runAsUser: 26}}, {name: b, securityContext: {privileged: true}}],
			initContainers: [` + waitYAML(`{runAsUser: 26}`) + `]}}`},
	}, {
		name:    "restricted as the pod's user and group",
		records: record,
		item: `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}],
			securityContext: {runAsUser: 26, runAsGroup: 27, fsGroup: 28}}}`,
		want: expectation{item: `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}],
			securityContext: {runAsUser: 26, runAsGroup: 27, fsGroup: 28},
			initContainers: [` + waitYAML(`{`+restricted+`, runAsNonRoot: true, runAsUser: 26, runAsGroup: 27}`) + `]}}`},
	}, {
		name:    "as root if the pod is",
		records: record,
		item:    `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}], securityContext: {runAsUser: 0}}}`,
		want: expectation{item: `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}],
			securityContext: {runAsUser: 0}, initContainers: [` + waitYAML(`{`+restricted+`, runAsUser: 0}`) + `]}}`},
	}, {
		name: "for snapshots in annotations, as of Velero 1.0",
		item: `{metadata: {name: web, namespace: shop, annotations: {snapshot.velero.io/data: s1}}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a, securityContext: {}}]}}`,
		want: expectation{item: `{metadata: {name: web, namespace: shop, annotations: {snapshot.velero.io/data: s1}}, spec: {volumes: [{name: data, emptyDir: {}}],
			containers: [{name: a, securityContext: {}}], initContainers: [` + waitYAML(`{}`) + `]}}`},
	}, {
		name:    "for a snapshot of a backup that failed, with a warning",
		records: failed,
		item:    `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a, securityContext: {}}]}}`,
		want: expectation{
			item: `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a, securityContext: {}}],
				initContainers: [` + waitYAML(`{}`) + `]}}`,
			warnings: []string{`the backup of its volume "data" had failed`},
		},
	}, {
		name:    "for a backup that lacks files, with a warning",
		records: lacking,
		item:    `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a, securityContext: {}}]}}`,
		want: expectation{
			item: `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a, securityContext: {}}],
				initContainers: [` + waitYAML(`{}`) + `]}}`,
			warnings: []string{`the backup of its volume "data" has completed, and says: snapshot s1 was saved without 4 files`},
		},
	}, {
		name:    "not for a volume that was empty",
		records: []velerov1.PodVolumeBackup{podVolumeBackup("data", "", "")},
		item:    `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
		want:    expectation{item: `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`},
	}, {
		name:    "not for a volume that was empty, of which its backup says more: a warning",
		records: emptied,
		item:    `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
		want: expectation{
			item:     `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
			warnings: []string{`its volume "data" stays empty: its backup Completed (PodVolumeBackup nightly-data): volume was empty so no snapshot was taken; 40 entries`},
		},
	}, {
		name:    "not for a volume whose backup failed, which is an error",
		records: notStored,
		item:    `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
		want: expectation{
			item:   `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
			errors: []string{`its volume "data" stays empty: its backup Failed`},
		},
	}, {
		name:    "not for what the API server fills",
		records: record,
		item:    `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, projected: {}}], containers: [{name: a}]}}`,
		want:    expectation{item: `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, projected: {}}], containers: [{name: a}]}}`},
	}, {
		name:    "not for a volume that the pod does not have",
		records: record,
		item:    `{metadata: {name: web, namespace: shop}, spec: {containers: [{name: a}]}}`,
		want: expectation{
			item:     `{metadata: {name: web, namespace: shop}, spec: {containers: [{name: a}]}}`,
			warnings: []string{`its volume "data", which the pod does not have`},
		},
	}, {
		name:    "not on Windows, which is an error",
		records: record,
		item:    `{metadata: {name: web, namespace: shop}, spec: {os: {name: windows}, volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
		want: expectation{
			item:   `{metadata: {name: web, namespace: shop}, spec: {os: {name: windows}, volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
			errors: []string{"does not run on Windows: data"},
		},
	}, {
		name:      "not without claims",
		records:   record,
		selection: leavesClaims,
		item:      `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
		want: expectation{
			item:     `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
			warnings: []string{"the Restore leaves out claims or volumes: data"},
		},
	}, {
		name:      "not without claims: that a backup failed is no error then",
		records:   notStored,
		selection: leavesClaims,
		item:      `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
		want: expectation{
			item:     `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
			warnings: []string{`its volume "data" stays empty: its backup Failed`},
		},
	}, {
		name:    "not for a claim that was backed up from another pod, with a warning",
		records: []velerov1.PodVolumeBackup{podVolumeBackup("data", "shared", "s1")},
		item:    `{metadata: {name: web-2, namespace: shop}, spec: {volumes: [{name: files, persistentVolumeClaim: {claimName: shared}}], containers: [{name: a}]}}`,
		want: expectation{
			item:       `{metadata: {name: web-2, namespace: shop}, spec: {volumes: [{name: files, persistentVolumeClaim: {claimName: shared}}], containers: [{name: a}]}}`,
			additional: []string{"persistentvolumeclaims shop/shared"},
			warnings:   []string{`its volume "files" is the claim "shared", which is restored through pod web: this pod does not wait for the data`},
		},
	}, {
		name:    "not for a claim of another pod that was empty",
		records: []velerov1.PodVolumeBackup{podVolumeBackup("data", "shared", "")},
		item:    `{metadata: {name: web-2, namespace: shop}, spec: {volumes: [{name: files, persistentVolumeClaim: {claimName: shared}}], containers: [{name: a}]}}`,
		want: expectation{
			item:       `{metadata: {name: web-2, namespace: shop}, spec: {volumes: [{name: files, persistentVolumeClaim: {claimName: shared}}], containers: [{name: a}]}}`,
			additional: []string{"persistentvolumeclaims shop/shared"},
		},
	}, {
		name:    "not for those of another pod",
		records: record,
		item:    `{metadata: {name: web, namespace: other}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`,
		want:    expectation{item: `{metadata: {name: web, namespace: other}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a}]}}`},
	}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := scopeWith(nil, Input{PodVolumeBackups: test.records})
			s.selection = test.selection
			item, out, err := prepareItem(t, s, "pods", decodeItem(t, test.item))
			test.want.check(t, item, out, err)
		})
	}
}

// TestPodVolumeOfTheListOfVolumes: Velero 1.14.0 to 1.18.2 store no PodVolumeBackup when one volume is not done in time. The list of
// volumes has what the others have stored.
func TestPodVolumeOfTheListOfVolumes(t *testing.T) {
	t.Parallel()
	info := func(volume, snapshot string) volumeinfo.BackupVolume {
		return volumeinfo.BackupVolume{BackupMethod: volumeinfo.MethodPodVolumeBackup, PodVolume: &volumeinfo.PodVolumeInfo{
			SnapshotHandle: snapshot, Size: 512, UploaderType: "restic", VolumeName: volume, PodName: "web", PodNamespace: "shop", Phase: "Completed",
		}}
	}
	late := info("late", "")
	late.PodVolume.Phase = velerov1.PodVolumeBackupPhaseInProgress
	records := []velerov1.PodVolumeBackup{podVolumeBackup("known", "", "s1")}
	s := scopeWith(nil, Input{PodVolumeBackups: records, VolumeInfos: []volumeinfo.BackupVolume{info("known", "s9"), info("data", "s2"), info("none", ""), late}})
	pod := decodeItem(t, `{metadata: {name: web, namespace: shop}, spec: {containers: [{name: a}],
		volumes: [{name: known, emptyDir: {}}, {name: data, emptyDir: {}}, {name: none, emptyDir: {}}, {name: late, emptyDir: {}}]}}`)
	got, warnings := s.podSnapshots(pod)
	want := []podSnapshot{{volume: "data", id: "s2", uploaderType: "restic", bytes: 512}, {volume: "known", id: "s1", uploaderType: "kopia", bytes: 4096}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(podSnapshot{})); diff != "" || len(warnings) > 0 {
		t.Errorf("warnings %q; snapshots (-want +got):\n%s", warnings, diff)
	}
	warnings, problems := s.emptyVolumes(pod)
	if len(warnings) != 0 || len(problems) != 1 || !strings.HasPrefix(problems[0], `its volume "late" stays empty: its backup InProgress (its PodVolumeBackup is missing)`) {
		t.Errorf("got %q, warnings %q", problems, warnings)
	}
	if len(records) != 1 {
		t.Errorf("the records that were given are %v now", records)
	}
}

func TestWaitsForOther(t *testing.T) {
	t.Parallel()
	const waits = `spec: {initContainers: [{name: a}, {name: restore-wait, args: [theirs]}]}`
	for name, test := range map[string]struct {
		pod  string
		want bool
	}{
		"no init container":     {`{spec: {containers: [{name: a}]}}`, false},
		"of another, new":       {`{` + waits + `}`, true},
		"of another, runs":      {`{` + waits + `, status: {initContainerStatuses: [{name: restore-wait, state: {running: {}}}]}}`, true},
		"of another, failed":    {`{` + waits + `, status: {initContainerStatuses: [{name: restore-wait, state: {terminated: {exitCode: 1}}}]}}`, true},
		"of another, has ended": {`{` + waits + `, status: {initContainerStatuses: [{name: restore-wait, state: {terminated: {exitCode: 0}}}]}}`, false},
		"another has ended":     {`{` + waits + `, status: {initContainerStatuses: [{name: a, state: {terminated: {exitCode: 0}}}]}}`, true},
		"before Velero 1.10":    {`{spec: {initContainers: [{name: restic-wait, args: [theirs]}]}}`, true},
		"of this one":           {`{spec: {initContainers: [{name: restore-wait, args: [ours]}]}}`, false},
		"what is no pod":        {`{spec: {initContainers: [1, {name: restore-wait, args: 1}]}, status: {initContainerStatuses: [1]}}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := waitsForOther(decodeItem(t, test.pod), "ours"); got != test.want {
				t.Errorf("%v, want %v", got, test.want)
			}
		})
	}
}

func TestUploaderSettings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config *velerov1.UploaderConfigForRestore
		want   map[string]string
	}{
		"none":   {nil, nil},
		"empty":  {&velerov1.UploaderConfigForRestore{}, map[string]string{"WriteSparseFiles": "false"}},
		"sparse": {&velerov1.UploaderConfigForRestore{WriteSparseFiles: new(true)}, map[string]string{"WriteSparseFiles": "true"}},
		"parallel": {
			&velerov1.UploaderConfigForRestore{ParallelFilesDownload: 8}, map[string]string{"WriteSparseFiles": "false", "ParallelFilesDownload": "8"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, uploaderSettings(test.config)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestWaitSettings has what Velero's ConfigMap may say of the init container.
func TestWaitSettings(t *testing.T) {
	t.Parallel()
	const defaults = `requests: {cpu: 100m, memory: 128Mi}, limits: {cpu: 100m, memory: 128Mi}`
	for _, test := range []struct {
		name                       string
		data                       map[string]string
		image, command             string // "": the defaults
		resources, securityContext string
		warning                    string
	}{
		{name: "nothing"},
		{name: "an image with a tag", data: map[string]string{"image": "registry.test:5000/a/b:2"}, image: "registry.test:5000/a/b:2"},
		{name: "an image without one gets ours", data: map[string]string{"image": "registry.test:5000/a/b"}, image: "registry.test:5000/a/b:1"},
		{name: "an image by its digest", data: map[string]string{"image": "a.test/b@sha256:0"}, image: "a.test/b@sha256:0"},
		{name: "an image without a registry", data: map[string]string{"image": "b:2"}, warning: `image "b:2" has no registry`},
		{name: "a command", data: map[string]string{"command": "/wait"}, command: "/wait"},
		{
			name: "resources", data: map[string]string{"cpuRequest": "50m", "memRequest": "64Mi", "cpuLimit": "0", "memLimit": "64Mi"},
			resources: `requests: {cpu: 50m, memory: 64Mi}, limits: {memory: 64Mi}`,
		},
		{name: "resources that are none", data: map[string]string{"cpuRequest": "much", "memLimit": "1Gi"}, warning: `cpuRequest "much"`},
		{name: "a request above its limit", data: map[string]string{"memRequest": "1Gi"}, warning: `memRequest "1Gi" is more than the limit 128Mi`},
		{
			name: "a security context by keys", data: map[string]string{"secCtxRunAsUser": "7", "secCtxRunAsGroup": "8", "secCtxAllowPrivilegeEscalation": "false"},
			securityContext: `{runAsUser: 7, runAsGroup: 8, allowPrivilegeEscalation: false}`,
		},
		{
			name: "a security context as YAML", data: map[string]string{"secCtxRunAsUser": "7", "secCtx": "runAsUser: 9\ncapabilities: {drop: [ALL]}\n"},
			securityContext: `{runAsUser: 9, capabilities: {drop: [ALL]}}`,
		},
		{name: "a user that is none", data: map[string]string{"secCtxRunAsUser": "root"}, warning: `secCtxRunAsUser "root" is not a number`},
		{name: "unknown fields", data: map[string]string{"secCtx": "runAs: 9"}, warning: "secCtx: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := scopeWith(nil, Input{PodVolumeBackups: []velerov1.PodVolumeBackup{podVolumeBackup("data", "", "s1")}, WaitContainer: test.data})
			const pod = `{metadata: {name: web, namespace: shop}, spec: {volumes: [{name: data, emptyDir: {}}], containers: [{name: a, securityContext: {runAsUser: 26}}]}}`
			item, _, err := prepareItem(t, s, "pods", decodeItem(t, pod))
			if err != nil {
				t.Fatal(err)
			}
			want := strings.NewReplacer("example.test/node-agent:1", either(test.image, "example.test/node-agent:1"),
				"/velero-restore-helper", either(test.command, "/velero-restore-helper"), defaults, either(test.resources, defaults),
			).Replace(waitYAML(either(test.securityContext, `{runAsUser: 26}`)))
			got, _ := fieldOf[[]any](item.Object, "spec", "initContainers")
			if diff := cmp.Diff([]any{decodeItem(t, want).Object}, got); diff != "" {
				t.Errorf("init container (-want +got):\n%s", diff)
			}
			if warnings := strings.Join(s.warnings, "\n"); !strings.Contains(warnings, test.warning) || (warnings == "") != (test.warning == "") {
				t.Errorf("warnings %q, want %q", warnings, test.warning)
			}
		})
	}
}

func either(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
