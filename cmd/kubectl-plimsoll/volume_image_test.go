package main

import (
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestImageOfAgents looks for the image of Plimsoll's node agent in the installations that there are: in place of Velero's node agent, and on the
// nodes that this one does not run on.
func TestImageOfAgents(t *testing.T) {
	t.Parallel()
	if text, err := os.ReadFile("../../deploy/some-nodes/kustomization.yaml"); err != nil || !strings.Contains(string(text), "value: "+someNodes+"\n") {
		t.Errorf("deploy/some-nodes gives the DaemonSet another name than %s: %v", someNodes, err)
	}
	const none, veleros = "", "velero/velero:v1.18.3"
	for name, test := range map[string]struct {
		nodeAgent, mixed string // the images of the DaemonSets
		asked, want      string
	}{
		"in place of Velero's":   {"plimsoll:test", none, "", "plimsoll:test"},
		"beside Velero's":        {veleros, "plimsoll:mixed", "", "plimsoll:mixed"},
		"Velero's is gone":       {none, "plimsoll:mixed", "", "plimsoll:mixed"},
		"only Velero's":          {veleros, none, "", ""},
		"none":                   {none, none, "", ""},
		"none, but one is given": {none, none, "plimsoll:asked", "plimsoll:asked"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := testenv.New(t, testenv.Options{})
			for set, image := range map[string]string{"node-agent": test.nodeAgent, someNodes: test.mixed} {
				if image == none {
					continue
				}
				labels := map[string]string{"name": "node-agent"}
				if image != veleros {
					labels[agentLabel] = agentName
				}
				e.Create(&appsv1.DaemonSet{ObjectMeta: e.Meta(set), Spec: appsv1.DaemonSetSpec{
					Selector: &metav1.LabelSelector{MatchLabels: labels},
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "node-agent", Image: image}}}},
				}})
			}
			v := &volumes{objects: objects{api: e.Client, namespace: e.Namespace}}
			got, err := v.image(t.Context(), test.asked)
			if got.name != test.want || (err == nil) != (test.want != "") {
				t.Errorf("the image is %q, want %q: %v", got.name, test.want, err)
			}
			if err != nil && (!strings.Contains(err.Error(), "--image") || !strings.Contains(err.Error(), someNodes)) {
				t.Errorf("the error does not say what to do: %v", err)
			}
		})
	}
}
