package nodeagent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestConcurrency(t *testing.T) {
	t.Parallel()
	c := newCluster(t, veleroLatest)
	c.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node, Labels: map[string]string{"disk": "fast", "zone": "a"}}})
	tests := map[string]struct {
		data map[string]string
		want int // 0: an error
	}{
		"empty":              {map[string]string{"c": `{}`}, 1},
		"global":             {map[string]string{"c": `{"loadConcurrency":{"globalConfig":3}}`}, 3},
		"not this node":      {map[string]string{"c": `{"loadConcurrency":{"globalConfig":3,"perNodeConfig":[{"nodeSelector":{"matchLabels":{"disk":"slow"}},"number":9}]}}`}, 3},
		"the smallest match": {map[string]string{"c": `{"loadConcurrency":{"globalConfig":1,"perNodeConfig":[{"nodeSelector":{"matchLabels":{"disk":"fast"}},"number":9},{"nodeSelector":{"matchLabels":{"zone":"a"}},"number":5}]}}`}, 5},
		"nonsense":           {map[string]string{"c": `{"loadConcurrency":{"globalConfig":-1}}`}, 1},
		"not JSON":           {map[string]string{"c": `loadConcurrency: 3`}, 0},
		"bad selector":       {map[string]string{"c": `{"loadConcurrency":{"perNodeConfig":[{"nodeSelector":{"matchExpressions":[{"key":"a","operator":"Near"}]},"number":5}]}}`}, 0},
		"two keys":           {map[string]string{"c": `{}`, "d": `{}`}, 0},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, GenerateName: "config-"}, Data: tc.data}
			c.create(config)
			got, err := Concurrency(t.Context(), c.client, c.ns, config.Name, c.node)
			if (err != nil) != (tc.want == 0) || (err == nil && got != tc.want) {
				t.Errorf("concurrency %d, %v; want %d", got, err, tc.want)
			}
		})
	}
	if _, err := Concurrency(t.Context(), c.client, c.ns, "missing", c.node); err == nil {
		t.Error("no error for a ConfigMap that is missing")
	}
}
