package progress

import "github.com/plimsoll-io/plimsoll/api/v1alpha1"

// Snapshot is what people are told about an operation: an immutable value.
type Snapshot = v1alpha1.VolumeProgress

// State is the one word that tells people where an operation is.
type State = v1alpha1.State

// The states of an operation.
const (
	StateQueued       = v1alpha1.StateQueued
	StateWaiting      = v1alpha1.StateWaiting
	StateScanning     = v1alpha1.StateScanning
	StateTransferring = v1alpha1.StateTransferring
	StateStalled      = v1alpha1.StateStalled
	StateFinishing    = v1alpha1.StateFinishing
	StateCompleted    = v1alpha1.StateCompleted
	StateFailed       = v1alpha1.StateFailed
	StateCanceled     = v1alpha1.StateCanceled
)
