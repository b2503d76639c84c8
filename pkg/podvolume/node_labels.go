package podvolume

import (
	"cmp"
	"context"
	"fmt"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
)

// An agent watches the objects that no agent has taken, and its own: labels tell them apart (docs/decisions/0037-watch-own-objects.md).

// Taken reports whether an agent has taken the object, so that the others do not watch it.
func (pv PodVolume) Taken() bool {
	_, ok := pv.Object.GetLabels()[v1alpha1.LabelNode]
	return ok
}

// TakenFor reports whether the object is in the watch of the node's agent.
func (pv PodVolume) TakenFor(node string) bool {
	value, ok := pv.Object.GetLabels()[v1alpha1.LabelNode]
	return ok && value == v1alpha1.LabelValue(node)
}

// Misplaced reports whether the object is in the watch of another agent than that of its node. A restore's node is known from its
// claim on.
func (pv PodVolume) Misplaced() bool { return pv.Taken() && pv.Node != "" && !pv.TakenFor(pv.Node) }

// takeLabels returns the change of labels that brings the object into the watch of the node's agent, nil if it is there.
func (pv PodVolume) takeLabels(node string) map[string]*string {
	_, ended := pv.Object.GetLabels()[v1alpha1.LabelEndedOn]
	if pv.TakenFor(node) && !ended {
		return nil
	}
	labels := map[string]*string{v1alpha1.LabelNode: new(v1alpha1.LabelValue(node))}
	if ended {
		labels[v1alpha1.LabelEndedOn] = nil
	}
	return labels
}

// endLabels returns the change of labels that takes an object that ends out of all watches.
func (pv PodVolume) endLabels() map[string]*string {
	node := cmp.Or(v1alpha1.LabelValue(pv.Node), pv.Object.GetLabels()[v1alpha1.LabelNode])
	labels := map[string]*string{v1alpha1.LabelEndedOn: &node}
	if pv.Taken() {
		labels[v1alpha1.LabelNode] = nil
	}
	return labels
}

// Take brings pv's version of its object into the watch of this node's agent, once.
func (e *Environment) Take(ctx context.Context, pv PodVolume) error {
	labels := pv.takeLabels(e.NodeName)
	if labels == nil {
		return nil
	}
	return e.setLabels(ctx, pv, labels)
}

// GiveUp removes the label of the agent that has taken pv's version of its object, once, so that all agents see the object and the right one
// takes it.
func (e *Environment) GiveUp(ctx context.Context, pv PodVolume) error {
	return e.setLabels(ctx, pv, map[string]*string{v1alpha1.LabelNode: nil})
}

func (e *Environment) setLabels(ctx context.Context, pv PodVolume, labels map[string]*string) error {
	_, err := e.send(ctx, pv.Object, patch{Metadata: patchMetadata{Labels: labels, ResourceVersion: pv.Object.GetResourceVersion()}})
	if err != nil {
		return fmt.Errorf("correct the labels of %s: %w", pv.Object.GetName(), err)
	}
	return nil
}
