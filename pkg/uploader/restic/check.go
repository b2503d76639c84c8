package restic

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
)

var _ uploader.Checker = (*Uploader)(nil)

// maxLooks bounds how often a repository is looked at that changes under the looks.
const maxLooks = 4

// Check runs restic check without a lock and without a cache, so it neither waits for backups and prune nor blocks them. What
// they do meanwhile can look like damage (docs/contracts/restic-kopia.md 12): a pack that prune has removed, a snapshot that is
// newer than the index that was read. So a look that finds nothing proves that the repository is whole, and damage counts if two
// looks in succession find the same. It returns uploader.ErrUnconfirmed if neither comes about.
func (u *Uploader) Check(ctx context.Context, req uploader.CheckRequest, p progress.Sink) (uploader.CheckResult, error) {
	req.Repository.ReadOnly = true
	var result uploader.CheckResult
	err := u.inWorkspace(req.Repository, func(w *workspace) error {
		w.cacheDir = "" // what it holds proves nothing of the repository
		var err error
		result, err = u.check(ctx, w, req, orDiscard(p))
		return err
	})
	if err != nil {
		return uploader.CheckResult{}, fmt.Errorf("check: %w", err)
	}
	return result, nil
}

func (u *Uploader) check(ctx context.Context, w *workspace, req uploader.CheckRequest, p progress.Sink) (uploader.CheckResult, error) {
	var result uploader.CheckResult
	var before *checkLook
	for result.Looks = 1; ; result.Looks++ {
		now := newLook(p, req.ReadData, int64(result.Looks))
		if err := u.runCheck(ctx, w, req, now); err != nil {
			return uploader.CheckResult{}, unconfirmed(before, err)
		}
		result.Snapshots, result.Packs = now.done["snapshots"], now.done["packs"]
		if now.whole {
			if err := u.hasSnapshots(ctx, w, req.Snapshots); err != nil {
				return uploader.CheckResult{}, err
			}
			break
		}
		agreed := now.agreeing(before)
		if len(agreed) > 0 {
			var err error
			if agreed, err = u.withoutListed(ctx, w, agreed); err != nil {
				return uploader.CheckResult{}, unconfirmed(before, err)
			}
		}
		if len(agreed) > 0 {
			now.summarize(agreed, &result)
			u.touched(ctx, w, agreed, &result)
			result.Remedies = u.remedies(agreed)
			break
		}
		if result.Looks == maxLooks {
			return uploader.CheckResult{}, fmt.Errorf("%w: %d looks found other things each, the last one %s", uploader.ErrUnconfirmed, maxLooks, now.example())
		}
		before = now
	}
	result.Locks, result.LockError = u.locks(ctx, w)
	return result, ctx.Err()
}

// withoutListed lists the packs again, and leaves out of the damage those that are there and were only missing before. restic check
// takes packs for missing where the storage refuses to list them, and goes on (docs/contracts/restic-kopia.md 12). The error is the
// storage's, also where it goes away altogether: what it lacks then is no damage.
func (u *Uploader) withoutListed(ctx context.Context, w *workspace, agreed []finding) ([]finding, error) {
	missing := map[string]bool{}
	for _, f := range agreed {
		if f.missing() {
			missing[f.id] = true
		}
	}
	if err := u.listIDs(ctx, w, "packs", func(id string) { delete(missing, id) }); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(agreed, func(f finding) bool { return f.missing() && !missing[f.id] }), nil
}

// hasSnapshots returns uploader.ErrSnapshotNotFound unless the repository has all of them. A repository without any is whole, too.
func (u *Uploader) hasSnapshots(ctx context.Context, w *workspace, wanted []string) error {
	left := slices.Clone(wanted)
	if len(left) == 0 {
		return nil
	}
	err := u.listIDs(ctx, w, "snapshots", func(found string) {
		left = slices.DeleteFunc(left, func(id string) bool { return strings.HasPrefix(found, id) })
	})
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%w: what the repository has is whole, but %d of %d snapshots that PodVolumeBackups name are not there, such as %s", uploader.ErrSnapshotNotFound, len(left), len(wanted), printable(left[0]))
	}
	return nil
}

// unconfirmed says what an earlier look has found, which counts for nothing alone.
func unconfirmed(before *checkLook, err error) error {
	if before == nil {
		return err
	}
	return fmt.Errorf("%w; an earlier look found something that could not be confirmed: %s", err, before.example())
}

// kindPack is the kind of a finding about a pack.
const kindPack = "pack"

// finding is one thing that restic check complains about.
type finding struct {
	kind string // pack, index, snapshot, tree
	id   string // whole, or as far as restic says it
	text string
}

func (f finding) key() string { return f.kind + " " + f.id }

// missing reports whether it is a pack that the storage does not list.
func (f finding) missing() bool {
	return f.kind == kindPack && f.text == "does not exist" // of an object that cannot be read S3 says something alike
}

// checkLook is one run of restic check.
type checkLook struct {
	sink     progress.Sink
	readData bool
	number   int64
	done     map[string]int64 // "snapshots" and "packs" that restic was through with

	whole bool // restic said so

	mu     sync.Mutex
	damage []finding         // in restic's order, each once
	seen   map[string]int    // their places by key
	other  []string          // what could not be read, or is not understood
	tree   string            // whose errors follow
	blobs  map[string]string // that restic names as damaged: their kind
}

func newLook(p progress.Sink, readData bool, number int64) *checkLook {
	l := &checkLook{sink: p, readData: readData, number: number, done: map[string]int64{}, seen: map[string]int{}, blobs: map[string]string{}}
	p.Report(progress.Reading{Stage: progress.StageScanning})
	return l
}

// runCheck runs restic check. The error says why nothing was found out.
func (u *Uploader) runCheck(ctx context.Context, w *workspace, req uploader.CheckRequest, l *checkLook) error {
	args := lockArgs(req.Repository)
	if req.ReadData {
		args = append(args, "--read-data")
	}
	err := u.run(ctx, w, invocation{command: "check", args: args, stdout: l.progress, said: func(line string) { l.line(w.hide(line)) }})
	if err == nil {
		if !l.whole {
			return errors.New("restic check ended without a result")
		}
		return nil
	}
	l.whole = false
	exit, ok := errors.AsType[*ExitError](err)
	switch {
	case !ok || exit.cause != nil || exit.Signal != nil || !strings.Contains(exit.Message, "repository contains errors") && !strings.Contains(exit.Message, "LoadIndex returned errors"):
		return err
	case len(l.damage) == 0:
		return fmt.Errorf("restic check could not read the repository, and found no damage: %s", l.example())
	}
	return nil
}

// step matches "[0:01] 75.00%  3 / 4 packs".
var step = regexp.MustCompile(`\s(\d+) / (\d+) (snapshots|packs)$`)

// progress takes a line of stdout.
func (l *checkLook) progress(line []byte) {
	if string(line) == "no errors were found" {
		l.whole = true
		return
	}
	m := step.FindSubmatch(line)
	if m == nil {
		return
	}
	done, doneErr := strconv.ParseInt(string(m[1]), 10, 64)
	total, totalErr := strconv.ParseInt(string(m[2]), 10, 64)
	if doneErr != nil || totalErr != nil {
		return
	}
	what := string(m[3])
	l.done[what] = max(l.done[what], done)
	reading := progress.Reading{Stage: progress.StageScanning, FilesDone: done, FilesTotal: total, Errors: l.errors(), CurrentItem: fmt.Sprintf("%d of %d %s", done, total, what)}
	if what == "packs" || !l.readData {
		reading.Stage, reading.TotalFinal = progress.StageTransferring, true
		reading.TotalBytes = l.number * total
		reading.BytesDone = min((l.number-1)*total+done, max(reading.TotalBytes-1, 0))
	}
	l.sink.Report(reading)
}

func (l *checkLook) errors() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(len(l.damage) + len(l.other))
}

// What restic check 0.14 to 0.19 prints of what it finds.
var (
	packLine     = regexp.MustCompile(`^(?:error: )?pack ([0-9a-f]{64})(?:: | contains \d+ errors: )(.*)`)
	packIDLine   = regexp.MustCompile(`^Pack ID does not match, want ([0-9a-f]{64}), got`)
	indexLine    = regexp.MustCompile(`^error: error loading index ([0-9a-f]+): (.*)`)
	snapshotLine = regexp.MustCompile(`^error: (?:failed to load snapshot [0-9a-f]+: )?(?:load |load\(|LoadRaw\()<snapshot/([0-9a-f]+)>\)?:? ?(.*)`)
	treeLine     = regexp.MustCompile(`^error for tree ([0-9a-f]+):`)
	blobText     = regexp.MustCompile(`blob ([0-9a-f]{64}): decrypting blob <(data|tree)/`)

	// broken is what restic says of bytes that it has got and that are wrong, or of what the storage says that it does not have. An
	// end before its time is not here: a connection that breaks looks the same, and restic names the wrong size besides.
	broken = regexp.MustCompile(`ciphertext verification failed|nonce is invalid|hash mismatch|invalid hash|wrong hash|invalid data returned|hash does not match|Pack ID does not match|` +
		`unexpected pack id|unexpected file size|not found in (the )?(repository|index)|id [0-9a-f]+ not found`)
	// remarks are lines that are no findings.
	remarks = regexp.MustCompile(`^(Load|List|Stat)\(|^Fatal: |^restic repair |^The repository |^Damaged pack files |^\s*$|returned error, retrying|operation successful after`)
)

// line takes a line of stderr.
func (l *checkLook) line(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := treeLine.FindStringSubmatch(line); m != nil {
		l.tree = m[1]
		return
	}
	if l.tree != "" && strings.HasPrefix(line, "  ") {
		l.add(finding{"tree", l.tree, strings.TrimSpace(line)})
		return
	}
	for kind, pattern := range map[string]*regexp.Regexp{kindPack: packLine, "index": indexLine, "snapshot": snapshotLine} {
		if m := pattern.FindStringSubmatch(line); m != nil {
			l.add(finding{kind, m[1], m[2]})
			return
		}
	}
	switch m := packIDLine.FindStringSubmatch(line); {
	case m != nil:
		l.add(finding{kindPack, m[1], line})
	case !remarks.MatchString(line):
		l.unclear(line)
	}
}

// add sorts a finding. What is absent is damage, since the storage has answered.
func (l *checkLook) add(f finding) {
	for _, m := range blobText.FindAllStringSubmatch(f.text, maxBlobs) {
		l.blobs[m[1]] = m[2]
	}
	if !broken.MatchString(f.text) && !absent.MatchString(f.text) {
		l.unclear(f.key() + ": " + f.text)
		return
	}
	if _, known := l.seen[f.key()]; known {
		return
	}
	f.text = printable(f.text)
	l.seen[f.key()] = len(l.damage)
	l.damage = append(l.damage, f)
}

// maxOther bounds what is kept of what is no damage.
const maxOther = 1000

func (l *checkLook) unclear(line string) {
	if len(l.other) < maxOther {
		l.other = append(l.other, printable(line))
	}
}

// example is one of the things that were found.
func (l *checkLook) example() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case len(l.damage) > 0:
		return l.damage[0].key() + ": " + l.damage[0].text
	case len(l.other) > 0:
		return l.other[0]
	}
	return noReason
}

// agreeing returns the damage that an earlier look has found, too.
func (l *checkLook) agreeing(before *checkLook) []finding {
	if before == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(l.damage), func(f finding) bool {
		_, known := before.seen[f.key()]
		return !known
	})
}

// summarize writes the damage that two looks agree on.
func (l *checkLook) summarize(agreed []finding, r *uploader.CheckResult) {
	r.Damaged = int64(len(agreed))
	r.Unread = int64(len(l.other) + len(l.damage) - len(agreed))
	r.LastError = agreed[0].key() + ": " + agreed[0].text
	for _, f := range agreed {
		if f.kind == kindPack && len(r.DamagedPacks) < uploader.MaxExamples {
			r.DamagedPacks = append(r.DamagedPacks, f.id)
		}
	}
}

// maxSnapshotRemedies keeps the list of remedies below what a CheckResult holds.
const maxSnapshotRemedies = 5

// remedies are the commands that restic's manual names for the damage. The order counts: what the index says of packs that are
// gone must be put right before snapshots are.
func (u *Uploader) remedies(agreed []finding) []string {
	var packs, missing, commands []string
	for _, f := range agreed {
		switch {
		case f.missing():
			missing = append(missing, f.id)
		case f.kind == kindPack:
			packs = append(packs, f.id)
		case f.kind == "snapshot" && len(commands) < maxSnapshotRemedies:
			commands = append(commands, "bring object snapshots/"+f.id+"... back from the bucket's versions: restic cannot repair it")
		}
	}
	if len(commands) > 0 && !slices.ContainsFunc(agreed, func(f finding) bool { return f.kind != "snapshot" }) {
		return commands
	}
	if len(packs)+len(missing) > 0 {
		commands = append(commands, "bring the damaged packs back from the bucket's versions, and check again; only where that is not possible:")
	}
	command, args := u.version.repairIndexCommand()
	repairIndex := strings.Join(append([]string{"restic", command}, args...), " ")
	if len(packs) == 0 {
		repairIndex = "kubectl plimsoll repository repair --index --latest, which runs '" + repairIndex + "'"
	}
	if !u.version.repairs() {
		if len(packs) > 0 {
			repairIndex += " --read-all-packs"
		}
		return append(commands, repairIndex, repairSnapshots+" (with restic 0.16 or later)")
	}
	if len(packs) > 0 {
		shown := packs[:min(len(packs), uploader.MaxExamples)]
		command := "restic repair packs " + strings.Join(shown, " ")
		if len(packs) > len(shown) {
			command += " ..."
		}
		commands = append(commands, command)
	}
	if len(packs)+len(missing) == 0 && slices.ContainsFunc(agreed, func(f finding) bool { return f.kind == "tree" && !absent.MatchString(f.text) }) {
		commands = append(commands, "kubectl plimsoll repository check --read-data, which names the packs")
	}
	if len(missing) > 0 || len(packs) == 0 {
		commands = append(commands, repairIndex)
	}
	return append(commands, repairSnapshots)
}

// repairSnapshots replaces the touched snapshots by others without the damaged files.
const repairSnapshots = "restic repair snapshots --forget, after which no Backup finds these snapshots: they have other ids"
