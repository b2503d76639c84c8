package nodeagent

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodeAgentConfig is what this agent reads of Velero's node-agent ConfigMap (docs/contracts/velero-node-agent.md 5.5). The other
// keys are about pods that this agent does not need.
type nodeAgentConfig struct {
	LoadConcurrency *struct {
		GlobalConfig  int `json:"globalConfig"`
		PerNodeConfig []struct {
			NodeSelector metav1.LabelSelector `json:"nodeSelector"`
			Number       int                  `json:"number"`
		} `json:"perNodeConfig"`
	} `json:"loadConcurrency"`
}

// Concurrency reads how many volumes a node may move at the same time from the node-agent ConfigMap: the smallest number
// of the rules that match the node, else the global one, else 1. A ConfigMap that is missing or cannot be read is an
// error, as in Velero since 1.17.
func Concurrency(ctx context.Context, api client.Reader, namespace, configMap, nodeName string) (int, error) {
	config, err := readConfig(ctx, api, types.NamespacedName{Namespace: namespace, Name: configMap})
	if err != nil || config.LoadConcurrency == nil {
		return 1, err
	}
	number := math.MaxInt
	if len(config.LoadConcurrency.PerNodeConfig) > 0 {
		var node corev1.Node
		if err := api.Get(ctx, types.NamespacedName{Name: nodeName}, &node); err != nil {
			return 0, fmt.Errorf("get the labels of node %s: %w", nodeName, err)
		}
		for i, rule := range config.LoadConcurrency.PerNodeConfig {
			selector, err := metav1.LabelSelectorAsSelector(&rule.NodeSelector)
			if err != nil {
				return 0, fmt.Errorf("ConfigMap %s/%s: loadConcurrency.perNodeConfig[%d].nodeSelector: %w", namespace, configMap, i, err)
			}
			if rule.Number > 0 && selector.Matches(labels.Set(node.Labels)) {
				number = min(number, rule.Number)
			}
		}
	}
	switch {
	case number != math.MaxInt:
		return number, nil
	case config.LoadConcurrency.GlobalConfig > 0:
		return config.LoadConcurrency.GlobalConfig, nil
	default:
		return 1, nil
	}
}

// followConcurrency changes the number of slots as cfg.ReadConcurrency says, until ctx ends. The agent has no right to watch
// ConfigMaps, since the name of this one is not known when its rights are given.
func (a *Agent) followConcurrency(ctx context.Context) {
	failed := false
	for {
		select {
		case <-time.After(wait.Jitter(a.cfg.ConfigInterval, 0.2)):
		case <-ctx.Done():
			return
		}
		number, err := a.cfg.ReadConcurrency(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failed:
			a.cfg.Logger.Warn("Cannot read the concurrency; keeping the last one", "concurrency", a.queue.Size(), "error", err)
		case err == nil && a.queue.resize(number):
			a.cfg.Logger.Info("Concurrency changed; running volumes go on", "concurrency", a.queue.Size())
		}
		failed = err != nil
	}
}

func readConfig(ctx context.Context, api client.Reader, name types.NamespacedName) (nodeAgentConfig, error) {
	var config nodeAgentConfig
	var object corev1.ConfigMap
	if err := api.Get(ctx, name, &object); err != nil {
		return config, fmt.Errorf("get the node-agent ConfigMap: %w", err)
	}
	if len(object.Data) != 1 {
		return config, fmt.Errorf("ConfigMap %s must have exactly one key with the node agent's configuration as JSON, it has %d", name, len(object.Data))
	}
	for key, text := range object.Data {
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			return config, fmt.Errorf("ConfigMap %s, key %s: %w", name, key, err)
		}
	}
	return config, nil
}
