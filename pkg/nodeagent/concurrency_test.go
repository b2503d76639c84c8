package nodeagent

import (
	"context"
	"fmt"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/pkg/podvolume"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

func TestConcurrency(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	c.Create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node, Labels: map[string]string{"disk": "fast", "zone": "a"}}})
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
			config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, GenerateName: "config-"}, Data: tc.data}
			c.Create(config)
			got, err := Concurrency(t.Context(), c.Client, c.Namespace, config.Name, c.node)
			if (err != nil) != (tc.want == 0) || (err == nil && got != tc.want) {
				t.Errorf("concurrency %d, %v; want %d", got, err, tc.want)
			}
		})
	}
	if _, err := Concurrency(t.Context(), c.Client, c.Namespace, "missing", c.node); err == nil {
		t.Error("no error for a ConfigMap that is missing")
	}
}

// The number of slots follows the ConfigMap, and what runs goes on.
func TestConcurrencyFollowsTheConfigMap(t *testing.T) {
	t.Parallel()
	c := newCluster(t, controlplane.LatestVelero)
	say := func(number int) map[string]string {
		return map[string]string{"c": fmt.Sprintf(`{"loadConcurrency":{"globalConfig":%d}}`, number)}
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: "node-agent-config"}, Data: say(1)}
	c.Create(config)
	name := config.Name
	hold := newHolding()
	agent, _ := c.startAgent(hold.fake(t), func(cfg *Config) {
		cfg.ConfigInterval = 50 * time.Millisecond
		cfg.ReadConcurrency = func(ctx context.Context) (int, error) {
			return Concurrency(ctx, c.Client, c.Namespace, name, c.node)
		}
	})
	pod := c.pod("source", "first", "second", "third")
	first, second, third := c.newBackup(pod, "first"), c.newBackup(pod, "second"), c.newBackup(pod, "third")
	c.Create(first)
	<-hold.started
	c.Create(second)
	c.history.until(t, second, "queued", func(s podvolume.PodVolume) bool { return s.LastSnapshot().State == progress.StateQueued })

	change := func(data map[string]string) {
		t.Helper()
		config.Data = data
		if err := c.Client.Update(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	change(say(2))
	<-hold.started // the second, beside the first
	change(map[string]string{"c": "nonsense"})
	change(say(1))
	deadline := time.After(testenv.Patience)
	for agent.queue.Size() != 1 {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatal("the number of slots did not fall")
		}
	}
	c.Create(third)
	c.history.until(t, third, "queued", func(s podvolume.PodVolume) bool { return s.LastSnapshot().State == progress.StateQueued })
	close(hold.release)
	for _, pvb := range []*velerov1.PodVolumeBackup{first, second, third} {
		if end := c.end(pvb); end.Phase != podvolume.PhaseCompleted {
			t.Errorf("ended as %s", describe([]podvolume.PodVolume{end}))
		}
	}
}

func TestQueueResize(t *testing.T) {
	t.Parallel()
	q := newQueue(3)
	var releases []func()
	take := func(ctx context.Context) {
		t.Helper()
		release, err := q.Acquire(ctx, podvolume.Backup, func(int) {})
		if err != nil {
			t.Fatal(err)
		}
		releases = append(releases, release)
	}
	for range 3 {
		take(t.Context())
	}
	if !q.resize(1) || q.resize(1) || q.Size() != 1 {
		t.Error("the queue has not one slot")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 { // two of three end, and the slots are still all taken
		releases[0]()
		releases = releases[1:]
		if q.free > 0 {
			t.Errorf("%d slots are free", q.free)
		}
		if _, err := q.Acquire(ended, podvolume.Backup, func(int) {}); err == nil {
			t.Error("more run than there are slots")
		}
	}
	releases[0]()
	releases = releases[:0]
	take(t.Context())
	q.resize(2)
	take(t.Context())
}
