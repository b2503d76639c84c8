package restic

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/text"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

// pruneRun reads what restic prune prints, which is text in all versions (docs/contracts/restic-kopia.md 12.1).
type pruneRun struct {
	sink    progress.Sink
	plan    uploader.PrunePlan
	planned bool
	phase   string
	done    int64           // steps of the phases that are over
	steps   int64           // of the phase that runs
	missing map[string]bool // packs that the index names, and that restic did not find
	left    int64

	listed  int  // snapshots before it began
	counted bool // restic has said how many it has found
}

var (
	pruneUsed    = regexp.MustCompile(`^finding data that is still in use for (\d+) snapshots$`)
	pruneStep    = regexp.MustCompile(`^\[[0-9:]+\] [0-9.]+%\s+(\d+) / (\d+) (\S.*)$`)
	pruneSize    = regexp.MustCompile(`^(total prune|unused size after prune):.*?(?:/ )?([0-9.]+) ([KMGTP]i)?B(?: \(.*)?$`)
	prunePacks   = regexp.MustCompile(`^to (repack|delete):\s+(\d+) (unreferenced )?packs$`)
	pruneMissing = regexp.MustCompile(`^\s*([0-9a-f]{64})$`)
)

// errHidden is part of the error of a prune that was stopped because restic did not find all snapshots.
var errHidden = errors.New("nothing was removed")

// gate refuses to go on where restic has found fewer snapshots than were listed before, or has not said how many: what the others need it would remove.
// All versions say it before they look for packs, which they do before they remove the first one.
func (r *pruneRun) gate(line []byte) error {
	said := strings.TrimSpace(string(line))
	if m := pruneUsed.FindStringSubmatch(said); m != nil {
		if found := number(m[1]); found < int64(r.listed) {
			return fmt.Errorf("restic has found %s, and %d were listed just before: the storage hides some for now, or somebody has removed them meanwhile; %w",
				text.Count(found, "snapshot", "snapshots"), r.listed, errHidden)
		}
		r.counted = true
	}
	if !r.counted && strings.HasPrefix(said, "collecting packs ") {
		return fmt.Errorf("restic does not say how many snapshots it has found; %w", errHidden)
	}
	return nil
}

// line takes a line of restic's standard output.
func (r *pruneRun) line(line []byte) {
	said := strings.TrimSpace(string(line))
	if m := pruneStep.FindStringSubmatch(said); m != nil {
		r.step(number(m[1]), number(m[2]), m[3])
		return
	}
	if m := pruneSize.FindStringSubmatch(said); m != nil {
		r.size(m[1], m[2], m[3])
		return
	}
	if m := prunePacks.FindStringSubmatch(said); m != nil {
		if m[1] == "repack" {
			r.plan.RepackedPacks = number(m[2])
			r.plan.RemovedPacks += r.plan.RepackedPacks
			return
		}
		r.plan.RemovedPacks += number(m[2])
		return
	}
	if m := pruneMissing.FindStringSubmatch(said); m != nil {
		r.miss(m[1])
		return
	}
	if isPrunePhase(said) {
		r.done, r.steps, r.phase = r.done+r.steps, 0, said
		r.report("")
	}
}

// prunePhases are the lines that say what restic does next. Some versions end them with dots.
var prunePhases = []string{
	"loading ", "finding data ", "searching used packs", "collecting packs ", "deleting unreferenced packs", "repacking packs", "rebuilding index", "deleting obsolete index files", "removing ",
}

func isPrunePhase(said string) bool {
	for _, phase := range prunePhases {
		if strings.HasPrefix(said, phase) {
			return true
		}
	}
	return false
}

// countsSteps reports whether the steps of the phase are packs of the plan. Those of other phases are snapshots and index files.
func (r *pruneRun) countsSteps() bool {
	return strings.HasPrefix(r.phase, "deleting unreferenced packs") || strings.HasPrefix(r.phase, "repacking packs") || strings.HasPrefix(r.phase, "removing ")
}

func (r *pruneRun) step(n, of int64, what string) {
	if r.countsSteps() {
		r.steps = n
		r.report("")
		return
	}
	r.report(fmt.Sprintf("%d of %d %s", n, of, what))
}

// report makes a reading: of packs where the plan counts them, and of words otherwise.
func (r *pruneRun) report(far string) {
	total := r.plan.RepackedPacks + r.plan.RemovedPacks
	reading := progress.Reading{Stage: progress.StageTransferring, BytesDone: min(r.done+r.steps, total), TotalBytes: total, TotalFinal: total > 0}
	if !r.countsSteps() {
		reading.Stage = progress.StageWaiting
		reading.Message = "for restic prune: " + strings.TrimRight(r.phase, ".")
		if far != "" {
			reading.Message += ", " + far
		}
	} else if total > 0 {
		reading.CurrentItem = fmt.Sprintf("%d of %d packs", reading.BytesDone, total)
	}
	r.sink.Report(reading)
}

func (r *pruneRun) size(what, size, unit string) {
	value, err := strconv.ParseFloat(size, 64)
	if err != nil {
		return
	}
	bytes := int64(value * float64(int64(1)<<(10*strings.Index(" KMGTP", (unit + " ")[:1]))))
	if what == "total prune" {
		r.plan.RemovableBytes, r.planned = bytes, true
		return
	}
	r.plan.UnusedBytesLeft = bytes
}

// said takes a line of restic's standard error.
func (r *pruneRun) said(line string) {
	if m := pruneMissing.FindStringSubmatch(line); m != nil {
		r.miss(m[1])
	}
	if strings.HasPrefix(line, "unable to remove ") {
		r.left++
	}
}

// miss notes a pack that is missing: where restic ends for it, whole ids stand alone in a line.
func (r *pruneRun) miss(id string) {
	if r.missing == nil {
		r.missing = map[string]bool{}
	}
	r.missing[id] = true
}

func number(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64) // too large: 0, and the storage's size says the truth
	return n
}
