package restore

import "context"

// skipDataUpload leaves out Velero's records of snapshots whose data it has moved. They are of no use without its data
// mover; each claim that they belong to is an error, see prepareClaimVolume.
func skipDataUpload(context.Context, *scope, *actionInput) (actionOutput, error) {
	return actionOutput{skip: "it belongs to Velero's data mover, whose snapshots are not restored"}, nil
}
