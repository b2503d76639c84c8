package describe

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/vmware-tanzu/velero/pkg/util/results"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// page is text for a terminal: lines with a name and a value, in columns. Whatever is written goes through Clean.
type page struct {
	out   *tabwriter.Writer
	depth int
}

func newPage(w io.Writer) *page { return &page{out: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)} }

// line writes a name and its value, and nothing where there is no value.
func (p *page) line(name, value string) {
	if value != "" {
		fmt.Fprintf(p.out, "%s%s:\t%s\n", strings.Repeat("  ", p.depth), Clean(name), Clean(value))
	}
}

// text writes a line of its own.
func (p *page) text(s string) { fmt.Fprintf(p.out, "%s%s\n", strings.Repeat("  ", p.depth), Clean(s)) }

// section writes a title, and what write writes a step further in.
func (p *page) section(title string, write func()) {
	p.text(title)
	p.depth++
	write()
	p.depth--
}

func (p *page) blank() { fmt.Fprintln(p.out) }

// Print writes a description for people. Nothing in it can steer a terminal.
func (d *Description) Print(w io.Writer) error {
	p := newPage(w)
	d.printOperation(p)
	for _, block := range []struct {
		title string
		count int
		print func(i int)
	}{
		{"Volumes:", len(d.Volumes), func(i int) { d.printVolume(p, &d.Volumes[i].Volume) }},
		{"Volumes of plugins:", len(d.PluginVolumes), func(i int) { d.printVolume(p, &d.PluginVolumes[i].Volume) }},
		{"Volumes as stored with the " + strings.ToLower(d.Operation.Kind) + ":", len(d.Records), func(i int) { d.Records[i].print(p) }},
	} {
		if block.count == 0 {
			continue
		}
		p.blank()
		p.section(block.title, func() {
			for i := range block.count {
				block.print(i)
			}
		})
	}
	if d.Results != nil {
		printResults(p, "Errors:", &d.Results.Errors)
		printResults(p, "Warnings:", &d.Results.Warnings)
	}
	p.notes(d.Notes)
	return p.out.Flush()
}

func (p *page) notes(notes []string) {
	if len(notes) == 0 {
		return
	}
	p.blank()
	p.section("Notes:", func() {
		for _, note := range notes {
			p.text("- " + note)
		}
	})
}

func (d *Description) printOperation(p *page) {
	o := &d.Operation
	p.line(o.Kind, o.Namespace+"/"+o.Name)
	p.line("Phase", o.Phase)
	p.line("Failure", o.FailureReason)
	for _, e := range o.ValidationErrors {
		p.line("Refused", e)
	}
	p.line("Backup", o.Backup)
	p.line("Schedule", o.Schedule)
	p.line("Location", o.Location)
	p.line("Created", d.when(o.Created))
	p.line("Started", d.when(o.Started))
	p.line("Completed", d.when(o.Completed))
	if !o.Started.IsZero() && !o.Completed.IsZero() {
		p.line("Took", Duration(o.Completed.Sub(o.Started)))
	}
	if !o.Expiration.IsZero() {
		p.line("Expires", o.Expiration.UTC().Format(time.RFC3339))
	}
	d.printItems(p)
	if a := o.Operations; a.Attempted > 0 {
		p.line("Asynchronous operations", fmt.Sprintf("%d of %d completed, %d failed", a.Completed, a.Attempted, a.Failed))
	}
	p.line("Volumes", d.Totals.String())
	p.line("Errors", strconv.Itoa(o.Errors))
	p.line("Warnings", strconv.Itoa(o.Warnings))
}

func (d *Description) printItems(p *page) {
	i := &d.Operation.Items
	switch share, known := i.Share(); {
	case i.DryRun && known:
		p.line("Items", fmt.Sprintf("%d would be restored", i.Total))
	case known && i.Estimate:
		p.line("Items", fmt.Sprintf("%d of about %d (%d%%)", i.Done, i.Total, share))
	case known:
		p.line("Items", fmt.Sprintf("%d of %d (%d%%)", i.Done, i.Total, share))
	case d.Operation.Verdict() == VerdictRunning:
		p.line("Items", fmt.Sprintf("%d, total %s", i.Done, NotKnownYet))
	default:
		p.line("Items", strconv.Itoa(i.Done))
	}
	if c := i.Counts; c != (v1alpha1.ItemCounts{}) || i.Skipped > 0 {
		line := fmt.Sprintf("%d created, %d updated, %d unchanged, %d skipped, %d failed", c.Created, c.Updated, c.Unchanged, c.Skipped, c.Failed)
		if i.Skipped > 0 {
			line += fmt.Sprintf(", %d left out by filters", i.Skipped)
		}
		p.line("Of them", line)
	}
	p.line("Step", string(i.Step))
	if i.Percent != nil {
		p.line("Items and volumes", strconv.Itoa(*i.Percent)+"%")
	}
	if d.Operation.Verdict() == VerdictRunning {
		p.line("Last item", i.Current)
	}
	if i.DryRun {
		p.line("Dry run", "nothing is restored")
	}
	p.line("Message", i.Message)
}

// when writes a time with its age.
func (d *Description) when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339) + " (" + Age(d.At, t) + " ago)"
}

// String writes sums in one line: 3: 1 Stalled, 2 Completed; 1.0 GiB of 4.0 GiB (25%), 12.0 MiB/s, time left 4m10s.
func (t *Totals) String() string {
	if t.Volumes == 0 {
		return "none"
	}
	states := make([]string, 0, len(t.ByState))
	for _, state := range byUrgency(t.ByState) {
		states = append(states, fmt.Sprintf("%d %s", t.ByState[state], state))
	}
	share, known := t.Percent()
	ended := t.Ended() == t.Volumes
	line := fmt.Sprintf("%d: %s; %s", t.Volumes, strings.Join(states, ", "), amount(t.BytesDone, t.TotalBytes, PercentOf(share, known), ended, t.TotalFinal))
	switch {
	case ended:
		return line
	case t.BytesPerSecond <= 0 && t.unmeasured:
		return line + ", rate and time left " + NotKnownYet
	case t.BytesPerSecond <= 0:
		return line + ", no movement reported"
	default:
		return line + ", " + Rate(t.BytesPerSecond) + ", time left " + ETA(t.ETASeconds)
	}
}

// amount writes how much is done of how much: 1.0 GiB of 4.0 GiB (25%; the total may grow).
func amount(done, total int64, percent string, ended, final bool) string {
	switch {
	case total <= 0 && ended:
		return Bytes(done)
	case total <= 0:
		return Bytes(done) + ", total " + NotKnownYet
	case !ended && !final:
		percent += "; the total may grow"
	}
	return Bytes(done) + " of " + Bytes(total) + " (" + percent + ")"
}

func byUrgency(states map[progress.State]int) []progress.State {
	return slices.SortedFunc(maps.Keys(states), func(a, b progress.State) int {
		return cmp.Or(cmp.Compare(slices.Index(urgency, a), slices.Index(urgency, b)), cmp.Compare(a, b))
	})
}

func (d *Description) printVolume(p *page, v *Volume) {
	p.section(v.subject()+" ("+v.Kind+" "+v.Name+")", func() {
		s := &v.Progress
		p.line("State", v.state(d.At))
		if v.Phase != string(s.State) {
			p.line("Phase", v.Phase)
		}
		p.line("Node", v.Node)
		p.line("Uploader", v.Uploader)
		p.line("Snapshot", v.SnapshotID)
		p.line("Done", v.done())
		if s.FilesDone > 0 || s.FilesTotal > 0 {
			p.line("Files", files(s))
		}
		if s.BytesUploaded > 0 {
			p.line("Sent", Bytes(s.BytesUploaded)+" after deduplication")
		}
		if !v.Ended() {
			d.printMovement(p, v)
		}
		if s.Attempt > 1 {
			p.line("Attempt", strconv.Itoa(s.Attempt))
		}
		if s.Errors > 0 {
			p.line("Errors", strconv.FormatInt(s.Errors, 10))
		}
		p.line("Last error", s.LastError)
		p.line("Message", v.Message)
		p.line("Started", d.when(v.Started))
		p.line("Completed", d.when(v.Completed))
		if !v.Started.IsZero() && !v.Completed.IsZero() {
			p.line("Took", Duration(v.Completed.Sub(v.Started)))
		}
		for _, key := range slices.Sorted(maps.Keys(v.PluginSpecific)) {
			p.line(key, v.PluginSpecific[key])
		}
	})
}

// state is the state with what it waits for, or since when nothing has moved.
func (v *Volume) state(now time.Time) string {
	s := &v.Progress
	line := string(s.State)
	switch {
	case s.State == progress.StateQueued && s.QueuePosition > 0:
		line += ", position " + strconv.Itoa(s.QueuePosition)
	case s.State == progress.StateStalled && !s.LastProgressTime.IsZero():
		line += ", " + v.Stall(now)
	}
	// What has failed says so in its message, in full.
	if s.Message != "" && !v.Ended() {
		line += ": " + s.Message
	}
	return line
}

// Stall says for how long a stalled volume or task has shown no sign of work. Most tasks move no bytes of volumes.
func (v *Volume) Stall(now time.Time) string {
	if v.Kind == KindRepositoryTask {
		return "no work seen for " + Age(now, v.Progress.LastWork())
	}
	return "no byte moved for " + StallAge(now, &v.Progress)
}

// StallAge is for how long no byte of a volume has moved. Where other work was done since, it also says when that ended: from then on
// the agent counts --stall-after and --idle-timeout.
func StallAge(now time.Time, s *progress.Snapshot) string {
	age, idle := Age(now, s.LastProgressTime), Age(now, s.LastWork())
	if idle == age {
		return age
	}
	return age + ", and no other work was done for " + idle
}

// done is what of the volume is done, with a percentage as soon as there is one.
func (v *Volume) done() string {
	s := &v.Progress
	share, known := v.Percent()
	// Nothing but our annotation tells whether a total is final.
	return amount(s.BytesDone, s.TotalBytes, PercentOf(share, known), v.Ended(), s.TotalFinal || v.Source == SourceStatus)
}

func files(s *progress.Snapshot) string {
	if s.FilesTotal <= 0 {
		return strconv.FormatInt(s.FilesDone, 10)
	}
	return fmt.Sprintf("%d of %d", s.FilesDone, s.FilesTotal)
}

// printMovement tells how fast a volume is that has not ended, and how fresh that is.
func (d *Description) printMovement(p *page, v *Volume) {
	s := &v.Progress
	if v.Source == SourceStatus {
		p.line("Rate", NotKnownYet)
		p.line("Time left", NotKnownYet)
		if v.Phase != "New" {
			p.line("Told by", "the object's status only, as Velero's own node agent writes it: no rate, no stall")
		}
		return
	}
	p.line("Rate", Rate(s.BytesPerSecond))
	p.line("Time left", ETA(s.ETASeconds))
	if !s.LastProgressTime.IsZero() {
		p.line("Last moved", Age(d.At, s.LastProgressTime)+" ago")
		if work := Age(d.At, s.LastWork()); work != Age(d.At, s.LastProgressTime) {
			p.line("Last work", work+" ago, without bytes")
		}
	}
	p.line("Current", s.CurrentItem)
	if !s.Heartbeat.IsZero() {
		line := Age(d.At, s.Heartbeat) + " ago"
		if v.Silent(d.At) {
			line += ": whoever wrote it is gone or does not reach the API server"
		}
		p.line("As of", line)
	}
}

func (r *Record) print(p *page) {
	p.section(r.subject(), func() {
		p.line("Method", r.Method)
		if r.Claim != "" {
			p.line("Pod", r.Pod)
		}
		p.line("Source", strings.Join(r.Source, ", "))
		if r.Size > 0 {
			p.line("Size", Bytes(r.Size))
		}
		if r.Took > 0 {
			p.line("Took", Duration(r.Took))
		}
		p.line("Result", r.Result)
		p.line("Reason", r.Reason)
	})
}

// printResults writes what went wrong, by where it did.
func printResults(p *page, title string, r *results.Result) {
	if len(r.Velero)+len(r.Cluster)+len(r.Namespaces) == 0 {
		return
	}
	list := func(where string, messages []string) {
		if len(messages) == 0 {
			return
		}
		p.section(where, func() {
			for _, m := range messages {
				p.text("- " + m)
			}
		})
	}
	p.blank()
	p.section(title, func() {
		list("Velero:", r.Velero)
		list("Cluster:", r.Cluster)
		for _, namespace := range slices.Sorted(maps.Keys(r.Namespaces)) {
			list("Namespace "+namespace+":", r.Namespaces[namespace])
		}
	})
}
