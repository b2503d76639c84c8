package kopiaworker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/kopia/kopia/repo"
	"github.com/kopia/kopia/snapshot"
	"github.com/kopia/kopia/snapshot/policy"
)

// parallelAbove is the size in bytes from which on parts of one file are read at the same time.
const parallelAbove = 2 << 30

// sourcePolicy is the policy that Velero keeps for each source: nothing expires, nothing is compressed, and sockets,
// FIFOs and devices are left out (docs/contracts/velero-node-agent.md 6.4).
func sourcePolicy(parallel int) *policy.Policy {
	all := policy.OptionalInt(math.MaxInt32)
	parallelFiles, above, yes := policy.OptionalInt(parallel), policy.OptionalInt64(parallelAbove), policy.OptionalBool(true)
	return &policy.Policy{
		RetentionPolicy: policy.RetentionPolicy{
			KeepLatest: &all, KeepHourly: &all, KeepDaily: &all, KeepWeekly: &all, KeepMonthly: &all, KeepAnnual: &all,
		},
		CompressionPolicy:   policy.CompressionPolicy{CompressorName: "none"},
		UploadPolicy:        policy.UploadPolicy{MaxParallelFileReads: &parallelFiles, ParallelUploadAboveSize: &above},
		SchedulingPolicy:    policy.SchedulingPolicy{Manual: true},
		ErrorHandlingPolicy: policy.ErrorHandlingPolicy{IgnoreUnknownTypes: &yes},
	}
}

// setPolicy makes sure that the source has its policy, and returns what follows from it for the source's tree.
func setPolicy(ctx context.Context, w repo.RepositoryWriter, source snapshot.SourceInfo, parallel int) (*policy.Tree, error) {
	want := sourcePolicy(parallel)
	is, err := policy.GetDefinedPolicy(ctx, w, source)
	switch {
	case errors.Is(err, policy.ErrPolicyNotFound):
	case err != nil:
		return nil, fmt.Errorf("read the source's policy: %w", err)
	}
	if !samePolicy(is, want) {
		if err := policy.SetPolicy(ctx, w, source, want); err != nil {
			return nil, fmt.Errorf("write the source's policy: %w", err)
		}
	}
	tree, err := policy.TreeForSourceWithOverride(ctx, w, source, withoutSilentLimits(want))
	if err != nil {
		return nil, fmt.Errorf("read policies: %w", err)
	}
	return tree, nil
}

// withoutSilentLimits keeps the policies of a repository's other users from leaving files out by size or file system: unlike what their ignore rules
// leave out, kopia does not report those (kopia 0.23, ignorefs.maybeWrappedChildEntry).
func withoutSilentLimits(p *policy.Policy) *policy.Policy {
	unlimited := *p
	unlimited.FilesPolicy.MaxFileSize, unlimited.FilesPolicy.OneFileSystem = math.MaxInt64, policy.NewOptionalBool(false)
	return &unlimited
}

// samePolicy spares the repository a manifest for each backup. How many files are read in parallel does not count: that
// differs between nodes, and the uploader is told directly.
func samePolicy(is, want *policy.Policy) bool {
	if is == nil {
		return false
	}
	adjusted := *is
	adjusted.UploadPolicy = want.UploadPolicy
	adjusted.Labels = want.Labels
	a, errA := json.Marshal(adjusted)
	b, errB := json.Marshal(want)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}
