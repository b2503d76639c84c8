//go:build chaos

package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-io/plimsoll/test/rig"
)

// plan is all that a seed decides.
type plan struct {
	seed     uint64
	uploader string
	volume   volumePlan
	source   string // what is mounted as the volume that is backed up: one of mounts
	target   string // the same for the volume that is restored into
	store    string // one of inDirectory, inFUSE, inBucket
	again    bool   // the node starts again after the restore, and with it the pod's init container
	backup   []fault
	restore  []fault
}

// What is below a volume. Nothing is mounted on a plain directory: it is an emptyDir; the others belong to a CSI driver.
const (
	onDisk = "directory"
	onFUSE = "FUSE"
	onExt4 = "ext4"
	onRAM  = "tmpfs"
)

// Where a repository is.
const (
	inDirectory = "directory"
	inFUSE      = "FUSE directory"
	inBucket    = "bucket"
)

// newPlan decides what a seed means.
func newPlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 14))
	p := plan{
		seed:     seed,
		uploader: pick(r, rig.Restic, rig.Kopia),
		source:   pick(r, onDisk, onDisk, onFUSE, onFUSE, onFUSE, onRAM),
		target:   pick(r, onDisk, onDisk, onFUSE, onFUSE, onFUSE, onExt4, onExt4, onRAM),
		store:    pick(r, inDirectory, inBucket, inBucket, inFUSE),
	}
	p.volume = newVolumePlan(r, p)
	p.backup = newSchedule(r, p, backup)
	p.restore = newSchedule(r, p, restore)
	p.again = chance(r, 4)
	return p
}

// newSchedule makes up to three faults for an operation.
func newSchedule(r *rand.Rand, p plan, op operation) []fault {
	var possible []kind // each as often as it weighs
	for _, k := range kinds {
		if k.possible == nil || k.possible(p, op) {
			possible = append(possible, slices.Repeat([]kind{k}, k.weight)...)
		}
	}
	var faults []fault
	for range pick(r, 0, 1, 1, 1, 2, 2, 2, 3) {
		k := possible[r.IntN(len(possible))]
		if slices.ContainsFunc(faults, func(f fault) bool { return f.kind.name == k.name }) {
			continue
		}
		f := fault{
			kind: k, at: newTrigger(r, p, op), count: 1 + r.IntN(3), errno: brokenErrnos[r.IntN(len(brokenErrnos))],
			lasts: time.Duration(100+r.IntN(2400)) * time.Millisecond, variant: r.IntN(1 << 16),
		}
		faults = append(faults, f)
	}
	return faults
}

// recoverable reports whether an operation must be Completed in spite of its faults.
func recoverable(faults []fault) bool {
	return !slices.ContainsFunc(faults, func(f fault) bool { return !f.kind.recoverable })
}

func (p plan) of(op operation) []fault {
	if op == backup {
		return p.backup
	}
	return p.restore
}

// with returns the plan with other faults.
func (p plan) with(op operation, faults []fault) plan {
	if op == backup {
		p.backup = faults
	} else {
		p.restore = faults
	}
	return p
}

// String describes the plan in a few lines.
func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s, repository in a %s, from %s to %s, volume: %s\n", p.seed, p.uploader, p.store, p.source, p.target, p.volume)
	for _, op := range []operation{backup, restore} {
		for _, f := range p.of(op) {
			fmt.Fprintf(&b, "  in the %s: %s\n", op, f)
		}
	}
	if p.again {
		b.WriteString("  after the restore the pod starts again\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// chance is true one time in n.
func chance(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }
