package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
)

// SelfCheckQuery is what node agents are asked.
type SelfCheckQuery struct {
	Locations []string      // BackupStorageLocations to open repositories of
	Uploader  string        // for locations without a repository
	Patience  time.Duration // with each agent
}

// SelfChecks asks the node agents in pods of a namespace to check themselves, through the API server, some at a time. The
// answers are by the pods' UIDs; those of pods that do not run have an error.
func SelfChecks(ctx context.Context, config *rest.Config, namespace string, pods []corev1.Pod, q SelfCheckQuery) (map[types.UID]describe.SelfCheckAnswer, error) {
	a, err := newAgents(config, namespace, q.Patience)
	if err != nil {
		return nil, err
	}
	answers := map[types.UID]describe.SelfCheckAnswer{}
	var mu sync.Mutex
	var asked sync.WaitGroup
	slots := make(chan struct{}, askedAtOnce)
	for i := range pods {
		pod := agentPodOf(&pods[i])
		slots <- struct{}{}
		asked.Go(func() {
			defer func() { <-slots }()
			answer := describe.SelfCheckAnswer{Err: errors.New("the pod does not run")}
			if pod.running {
				answer.Check, answer.Err = a.selfCheck(ctx, pod, q)
			}
			mu.Lock()
			defer mu.Unlock()
			answers[pod.uid] = answer
		})
	}
	asked.Wait()
	return answers, nil
}

func (a *agents) selfCheck(ctx context.Context, p agentPod, q SelfCheckQuery) (*v1alpha1.SelfCheck, error) {
	ctx, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	request := a.api.Get().Namespace(a.namespace).Resource("pods").Name(p.proxied).SubResource("proxy").Suffix("self-check").
		SetHeader("Accept", "application/json").MaxRetries(0).Param("uploader", q.Uploader)
	for _, location := range q.Locations {
		request = request.Param("location", location)
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	var document v1alpha1.SelfCheck
	if err := json.NewDecoder(io.LimitReader(body, answerLimit)).Decode(&document); err != nil {
		return nil, fmt.Errorf("decode /self-check: %w", err)
	}
	return &document, nil
}
