package restore

import (
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// seeds are items whose fields have the types that they should, and others.
var seeds = []string{
	`{"metadata":{"name":"web","namespace":"shop","annotations":{"snapshot.velero.io/data":"s"}},"spec":{"volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"c"}}],"containers":[{"name":"a","image":"old/x","volumeMounts":[{}]}],"initContainers":[{"name":"restore-wait"}]}}`,
	`{"metadata":{"name":"web","namespace":"shop","annotations":1,"labels":[]},"spec":{"volumes":{"a":1},"containers":[1,[],null,{"image":3}],"initContainers":"x","securityContext":[],"ephemeralContainers":[{"name":null}]}}`,
	`{"metadata":{"name":"pv-1","managedFields":[{"fieldsV1":{"f:spec":{"f:ports":[]}}},7]},"spec":{"claimRef":[],"ports":[{"port":"x","nodePort":{}}],"selector":{"matchLabels":[]},"template":{"metadata":7}}}`,
	`{"metadata":{"name":"a","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"spec\":{\"ports\":[{\"nodePort\":1e99}]}}"}},"spec":{"type":"NodePort","ports":[{"nodePort":1.5}],"preserveUnknownFields":true,"versions":[{"schema":{"openAPIV3Schema":[]}}]},"apiVersion":"apiextensions.k8s.io/v1"}`,
	`{"metadata":{"name":"c","namespace":"shop"},"spec":{"volumeName":"pv-1","storageClassName":"old","source":7,"volumeSnapshotRef":{"name":"x"}},"status":{"phase":"Bound","snapshotHandle":"h","boundVolumeSnapshotContentName":"n"}}`,
	`{"metadata":{},"spec":[],"webhooks":[{}],"subjects":{},"type":"kubernetes.io/service-account-token","data":[],"secrets":[{"name":{}}]}`,
	`{"metadata":[],"spec":null,"status":"x"}`,
	`{}`,
}

func decodeSeed(text string) (map[string]any, bool) {
	var content map[string]any
	err := utiljson.Unmarshal([]byte(text), &content)
	return content, err == nil && content != nil
}

// FuzzActions lets every action change an item of any shape.
func FuzzActions(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed, seeds[0])
	}
	cluster := bareCluster(f)
	f.Fuzz(func(t *testing.T, text, pod string) {
		original, ok := decodeSeed(text)
		if !ok {
			return
		}
		records := []velerov1.PodVolumeBackup{podVolumeBackup("data", "c", "s"), podVolumeBackup("other", "", "s")}
		s := scopeWith(cluster, Input{
			Restore: &velerov1.Restore{Spec: velerov1.RestoreSpec{
				NamespaceMapping: map[string]string{"shop": "copy"},
				Hooks:            velerov1.RestoreHooks{Resources: []velerov1.RestoreResourceHookSpec{{PostHooks: []velerov1.RestoreResourceHook{{}}}}},
			}},
			PodVolumeBackups: records, Images: map[string]string{"old": "new"},
			VolumeInfos: []volumeinfo.BackupVolume{{PVName: "pv-1", BackupMethod: volumeinfo.MethodPodVolumeBackup}},
		})
		for _, action := range actions {
			for _, resource := range action.resources {
				in := &actionInput{
					resource: schema.ParseGroupResource(resource),
					item:     &unstructured.Unstructured{Object: runtime.DeepCopyJSON(original)},
					original: &unstructured.Unstructured{Object: original},
				}
				if _, err := action.apply(t.Context(), s, in); err != nil {
					continue
				}
				runtime.DeepCopyJSON(in.item.Object) // panics on what is no JSON
			}
		}
		if created, ok := decodeSeed(pod); ok {
			s.restorePodVolumes(t.Context(), &unstructured.Unstructured{Object: original}, &unstructured.Unstructured{Object: created})
		}
	})
}

// FuzzModifiers lets any rules change an item of any shape.
func FuzzModifiers(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed, "version: v1\nresourceModifierRules:\n- conditions: {groupResource: '*', matches: [{path: /metadata/name, value: web}]}\n  patches: [{operation: copy, from: /spec, path: /spec/containers/0}, {operation: move, from: /spec/volumes, path: /a}]")
		f.Add(seed, "version: v1\nresourceModifierRules:\n- {conditions: {groupResource: pods}, mergePatches: [{patchData: 'spec: {containers: null, x: {y: null}}'}]}")
		f.Add(`{"apiVersion":"v1","kind":"Pod",`+seed[1:], "version: v1\nresourceModifierRules:\n- {conditions: {groupResource: pods}, strategicPatches: [{patchData: 'spec: {containers: [{name: a, ports: [{containerPort: 1}]}], volumes: [{$patch: delete, name: data}]}'}]}")
	}
	f.Fuzz(func(t *testing.T, text, rules string) {
		content, ok := decodeSeed(text)
		if !ok {
			return
		}
		m, err := parseModifiers([]byte(rules))
		if err != nil {
			return
		}
		item := &unstructured.Unstructured{Object: content}
		if err := m.apply(schema.GroupResource{Resource: "pods"}, item); err != nil {
			t.Log(err)
		}
		runtime.DeepCopyJSON(item.Object)
	})
}
