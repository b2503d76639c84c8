package restore

import (
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestPods(t *testing.T) {
	t.Parallel()
	hook := func(edit func(*velerov1.RestoreResourceHookSpec)) velerov1.RestoreSpec {
		spec := velerov1.RestoreResourceHookSpec{Name: "unlock", PostHooks: []velerov1.RestoreResourceHook{{Init: &velerov1.InitRestoreHook{
			InitContainers: []runtime.RawExtension{{Raw: []byte(`{"name": "unlock", "image": "a.test/u", "resizePolicy": [], "future": 1}`)}},
		}}}}
		edit(&spec)
		return velerov1.RestoreSpec{Hooks: velerov1.RestoreHooks{Resources: []velerov1.RestoreResourceHookSpec{spec}}}
	}
	const unlocked = `{kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {containers: [{name: a}],
		initContainers: [{name: unlock, image: a.test/u, resizePolicy: [], future: 1}]}}`
	plain := `{kind: Pod, metadata: {name: web, namespace: shop, labels: {app: web}}, spec: {containers: [{name: a}]}}`
	for _, test := range []struct {
		name string
		spec velerov1.RestoreSpec
		item string
		want expectation
	}{{
		name: "node, priority and token go, claims and PriorityClass come before",
		item: `{kind: Pod, metadata: {name: web, namespace: shop}, spec: {
			nodeName: n1, priority: 1000, priorityClassName: high, serviceAccountName: web,
			volumes: [{name: data, persistentVolumeClaim: {claimName: data-web}}, {name: web-token-x7k2p, secret: {secretName: web-token-x7k2p}},
				{name: web-token-cache, emptyDir: {}}, {name: web-token-mine1, secret: {secretName: other}}],
			containers: [{name: a, volumeMounts: [{name: data, mountPath: /data}, {name: web-token-x7k2p, mountPath: /t}, {name: web-token-cache, mountPath: /c}]}],
			initContainers: [{name: b, volumeMounts: [{name: web-token-x7k2p, mountPath: /t}]}]}}`,
		want: expectation{
			item: `{kind: Pod, metadata: {name: web, namespace: shop}, spec: {
				priorityClassName: high, serviceAccountName: web,
				volumes: [{name: data, persistentVolumeClaim: {claimName: data-web}}, {name: web-token-cache, emptyDir: {}}, {name: web-token-mine1, secret: {secretName: other}}],
				containers: [{name: a, volumeMounts: [{name: data, mountPath: /data}, {name: web-token-cache, mountPath: /c}]}],
				initContainers: [{name: b}]}}`,
			additional: []string{"persistentvolumeclaims shop/data-web", "priorityclasses.scheduling.k8s.io /high"},
		},
	}, {
		name: "a RuntimeClass comes before, if the backup has it",
		item: `{kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: a}], runtimeClassName: vm, overhead: {memory: 1Mi}}}`,
		want: expectation{
			item:       `{kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: a}], runtimeClassName: vm}}`,
			additional: []string{"runtimeclasses.node.k8s.io /vm"},
		},
	}, {
		name: "a RuntimeClass that the backup does not have may be there",
		item: `{kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: a}], runtimeClassName: other}}`,
		want: expectation{},
	}, {
		name: "a pod of the default ServiceAccount loses its token",
		item: `{kind: Pod, metadata: {name: web, namespace: shop}, spec: {volumes: [{name: default-token-x7k2p, secret: {secretName: default-token-x7k2p}}],
			containers: [{name: a, volumeMounts: [{name: default-token-x7k2p, mountPath: /t}]}]}}`,
		want: expectation{item: `{kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: a}]}}`},
	}, {
		name: "ephemeral containers go with a warning",
		item: `{kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: a}], ephemeralContainers: [{name: d1}, {name: d2}]}}`,
		want: expectation{
			item:     `{kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: a}]}}`,
			warnings: []string{"d1, d2"},
		},
	}, {
		name: "the init containers of earlier restores go",
		item: `{kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: a}],
			initContainers: [{name: restore-wait}, {name: mine}, {name: restic-wait}]}}`,
		want: expectation{item: `{kind: Pod, metadata: {name: web, namespace: shop}, spec: {containers: [{name: a}], initContainers: [{name: mine}]}}`},
	}, {
		name: "an init container of annotations comes first, and the Restore's do not count",
		spec: hook(func(*velerov1.RestoreResourceHookSpec) {}),
		item: `{kind: Pod, metadata: {name: web, namespace: shop, annotations: {init.hook.restore.velero.io/container-image: a.test/x, init.hook.restore.velero.io/container-name: x,
			init.hook.restore.velero.io/command: '["/x", "1"]'}}, spec: {containers: [{name: a}], initContainers: [{name: restore-wait}, {name: x, image: old}, {name: b}]}}`,
		want: expectation{item: `{kind: Pod, metadata: {name: web, namespace: shop, annotations: {init.hook.restore.velero.io/container-image: a.test/x,
			init.hook.restore.velero.io/container-name: x, init.hook.restore.velero.io/command: '["/x", "1"]'}},
			spec: {containers: [{name: a}], initContainers: [{name: x, image: a.test/x, command: [/x, "1"]}, {name: b}]}}`},
	}, {
		name: "an init container of an annotation alone",
		item: `{kind: Pod, metadata: {name: web, namespace: shop, annotations: {init.hook.restore.velero.io/container-image: a.test/x}}, spec: {containers: [{name: a}]}}`,
		want: expectation{item: `{kind: Pod, metadata: {name: web, namespace: shop, annotations: {init.hook.restore.velero.io/container-image: a.test/x}},
			spec: {containers: [{name: a}], initContainers: [{name: velero-restore-init-hook, image: a.test/x}]}}`},
	}, {
		name: "a hook of the Restore for all",
		spec: hook(func(*velerov1.RestoreResourceHookSpec) {}),
		item: plain,
		want: expectation{item: unlocked},
	}, {
		name: "for this namespace and label",
		spec: hook(func(h *velerov1.RestoreResourceHookSpec) {
			h.IncludedNamespaces = []string{"st*"}
			h.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		}),
		item: plain,
		want: expectation{item: unlocked},
	}, {
		name: "for another namespace",
		spec: hook(func(h *velerov1.RestoreResourceHookSpec) { h.IncludedNamespaces = []string{"shop"} }),
		item: plain,
		want: expectation{item: plain},
	}, {
		name: "whatever resources it includes, as in Velero",
		spec: hook(func(h *velerov1.RestoreResourceHookSpec) { h.IncludedResources = []string{"deployments.apps"} }),
		item: plain,
		want: expectation{item: unlocked},
	}, {
		name: "whatever resources it excludes, as in Velero",
		spec: hook(func(h *velerov1.RestoreResourceHookSpec) { h.ExcludedResources = []string{"po", "*"} }),
		item: plain,
		want: expectation{item: unlocked},
	}, {
		name: "for other labels",
		spec: hook(func(h *velerov1.RestoreResourceHookSpec) {
			h.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}
		}),
		item: plain,
		want: expectation{item: plain},
	}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			backup := archiveOf(t, "1.1.0", map[string]string{"runtimeclasses.node.k8s.io/cluster/vm": `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: vm}, handler: vm}`})
			test.spec.NamespaceMapping = map[string]string{"shop": "store"}
			s := scopeWith(nil, Input{Restore: &velerov1.Restore{Spec: test.spec}, Archive: backup})
			item, out, err := prepareItem(t, s, "pods", decodeItem(t, test.item))
			test.want.check(t, item, out, err)
		})
	}
}
