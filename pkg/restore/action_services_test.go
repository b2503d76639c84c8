package restore

import (
	"testing"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
)

func TestServiceAddresses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		preserve bool
		item     string
		want     expectation
	}{{
		name: "what the cluster has chosen goes",
		item: `{metadata: {name: a}, spec: {type: NodePort, clusterIP: 10.0.0.7, clusterIPs: [10.0.0.7], ports: [{port: 80, protocol: TCP, nodePort: 30080}]}}`,
		want: expectation{item: `{metadata: {name: a}, spec: {type: NodePort, ports: [{port: 80, protocol: TCP}]}}`},
	}, {
		name: "a headless Service stays headless",
		item: `{metadata: {name: a}, spec: {clusterIP: None, clusterIPs: [None], ports: [{port: 80}]}}`,
		want: expectation{item: `{metadata: {name: a}, spec: {clusterIP: None, clusterIPs: [None], ports: [{port: 80}]}}`},
	}, {
		name:     "the Restore asks for the node ports",
		preserve: true,
		item: `{metadata: {name: a}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000, clusterIP: 10.0.0.7,
			ports: [{port: 80, nodePort: 30080}]}}`,
		want: expectation{item: `{metadata: {name: a}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000,
			ports: [{port: 80, nodePort: 30080}]}}`},
	}, {
		name: "kubectl apply has asked for some node ports, by name and by number",
		item: `{metadata: {name: a, annotations: {kubectl.kubernetes.io/last-applied-configuration:
				'{"spec":{"ports":[{"name":"web","nodePort":30080},{"nodePort":"30082"},{"name":"admin"}]}}'}},
			spec: {type: NodePort, ports: [{name: web, port: 80, nodePort: 30080}, {name: admin, port: 81, nodePort: 30081},
				{port: 82, nodePort: 30082}, {port: 83, nodePort: 30083}]}}`,
		want: expectation{item: `{metadata: {name: a, annotations: {kubectl.kubernetes.io/last-applied-configuration:
				'{"spec":{"ports":[{"name":"web","nodePort":30080},{"nodePort":"30082"},{"name":"admin"}]}}'}},
			spec: {type: NodePort, ports: [{name: web, port: 80, nodePort: 30080}, {name: admin, port: 81}, {port: 82, nodePort: 30082}, {port: 83}]}}`},
	}, {
		name: "somebody manages a node port and the port for health checks",
		item: `{metadata: {name: a, managedFields: [{manager: x, fieldsV1: {"f:spec": {"f:healthCheckNodePort": {}, "f:ports": {
				'k:{"port":80,"protocol":"TCP"}': {"f:nodePort": {}}, 'k:{"port":81,"protocol":"TCP"}': {"f:port": {}}}}}}]},
			spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000,
				ports: [{port: 80, protocol: TCP, nodePort: 30080}, {port: 81, protocol: TCP, nodePort: 30081}]}}`,
		want: expectation{item: `{metadata: {name: a}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000,
			ports: [{port: 80, protocol: TCP, nodePort: 30080}, {port: 81, protocol: TCP}]}}`},
	}, {
		name: "nobody has asked for the port for health checks",
		item: `{metadata: {name: a}, spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 31000}}`,
		want: expectation{item: `{metadata: {name: a}, spec: {type: LoadBalancer, externalTrafficPolicy: Local}}`},
	}, {
		name: "an annotation that cannot be read costs the node ports, not the Service",
		item: `{metadata: {name: a, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"spec"'}},
			spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}]}}`,
		want: expectation{
			warnings: []string{"which says what node ports to keep, cannot be read"},
			item: `{metadata: {name: a, annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"spec"'}},
				spec: {type: NodePort, ports: [{port: 80}]}}`,
		},
	}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := scopeWith(nil, Input{Restore: &velerov1.Restore{Spec: velerov1.RestoreSpec{PreserveNodePorts: &test.preserve}}})
			item, out, err := prepareItem(t, s, "services", decodeItem(t, test.item))
			test.want.check(t, item, out, err)
		})
	}
}
