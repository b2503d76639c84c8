package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/test/bench/machine"
)

// result is what a run has measured.
type result struct {
	agents                   int
	claiming, moving, ending phase
}

// phase is what was counted during a part of a run.
type phase struct {
	took          time.Duration
	received      bytesSpread
	writes        []time.Duration // sorted
	before, after usage
}

// count runs do and counts meanwhile.
func (f *fleet) count(ctx context.Context, do func() error) (p phase, err error) {
	if p.before, err = f.usage(ctx); err != nil {
		return p, err
	}
	received, begin := f.received(), time.Now()
	f.writes.take()
	if err := do(); err != nil {
		return p, err
	}
	p.took, p.received, p.writes = time.Since(begin), spread(f.received(), received), f.writes.take()
	p.after, err = f.usage(ctx)
	return p, err
}

// bytesSpread are the bytes that agents have received: the one in the middle, and the one with the most.
type bytesSpread struct{ median, most int64 }

func spread(now, before []int64) bytesSpread {
	got := make([]int64, len(now))
	for i := range now {
		got[i] = now[i] - before[i]
	}
	slices.Sort(got)
	return bytesSpread{got[len(got)/2], got[len(got)-1]}
}

// latencies collects how long writes have taken.
type latencies struct {
	mu   sync.Mutex
	list []time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, d)
}

// take returns what was collected since the last call, sorted.
func (l *latencies) take() []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	slices.Sort(list)
	return list
}

// timedWrites measures how long the API server takes to answer patches.
type timedWrites struct {
	next http.RoundTripper
	took *latencies
}

func (w timedWrites) RoundTrip(request *http.Request) (*http.Response, error) {
	begin := time.Now()
	answer, err := w.next.RoundTrip(request)
	if request.Method == http.MethodPatch && err == nil {
		w.took.add(time.Since(begin))
	}
	return answer, err
}

// find returns the value of a metric in a text of Prometheus' format.
func find(text io.Reader, metric string) (float64, error) {
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), metric) {
			fields := strings.Fields(lines.Text())
			return strconv.ParseFloat(fields[len(fields)-1], 64)
		}
	}
	return 0, errors.Join(fmt.Errorf("there is no metric %s", metric), lines.Err())
}

// printTable prints the results as Markdown, so that docs/scale.md can hold what was printed.
func printTable(results []result, o options) error {
	fmt.Printf("%s: %s; %d volumes for each agent, progress each %s, %s of movement\n\n", time.Now().UTC().Format(time.DateOnly), machine.Describe(os.TempDir()),
		volumes, o.interval, o.moving)
	t := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	row := func(name string, cell func(result) string) {
		fmt.Fprintf(t, "| %s\t", name)
		for _, r := range results {
			fmt.Fprintf(t, "| %s\t", cell(r))
		}
		fmt.Fprintln(t, "|")
	}
	row("agents", func(r result) string { return strconv.Itoa(r.agents) })
	row("---", func(result) string { return "---:" })
	row("volumes", func(r result) string { return strconv.Itoa(r.agents * volumes) })
	row("all volumes created and claimed, s", func(r result) string { return r.claiming.seconds() })
	row("received by an agent meanwhile, KiB: median, most", func(r result) string { return r.claiming.kibibytes() })
	row("API server, etcd, all agents in one process meanwhile: CPUs", func(r result) string { return r.claiming.allCPUs() })
	row("moving: received by an agent, KiB/min: median, most", func(r result) string { return r.moving.kibibytesPerMinute() })
	row("patches/s", func(r result) string {
		return fmt.Sprintf("%.1f", float64(len(r.moving.writes))/r.moving.took.Seconds())
	})
	row("a patch, ms: median, p99", func(r result) string { return r.moving.quantile(0.5) + ", " + r.moving.quantile(0.99) })
	row("API server, etcd, all agents in one process meanwhile: CPUs", func(r result) string { return r.moving.allCPUs() })
	row("API server, MiB", func(r result) string { return strconv.FormatInt(r.moving.after.apiMemory>>20, 10) })
	row("etcd, MiB", func(r result) string { return strconv.FormatInt(r.moving.after.etcdMemory>>20, 10) })
	row("etcd's database grows, MiB/min", func(r result) string { return r.moving.etcdGrowth() })
	row("all volumes ended, s", func(r result) string { return r.ending.seconds() })
	row("received by an agent meanwhile, KiB: median, most", func(r result) string { return r.ending.kibibytes() })
	row("API server, etcd, all agents in one process meanwhile: CPUs", func(r result) string { return r.ending.allCPUs() })
	if err := t.Flush(); err != nil {
		return err
	}
	for _, note := range append(o.leftOut(), fullMachine(results)...) {
		fmt.Println("\n- " + note)
	}
	return nil
}

// leftOut returns what the agents are spared that those of an installed version are not.
func (o options) leftOut() (notes []string) {
	if o.labelled {
		notes = append(notes, "Left out: volumes have their node's label when they are created, so that no agent is sent new volumes of others.")
	}
	if o.interval > progress.DefaultInterval {
		notes = append(notes, fmt.Sprintf("Left out: agents write progress each %s; as installed, each %s.", o.interval, progress.DefaultInterval))
	}
	return notes
}

// fullMachine returns in which phases nearly all processors were busy, with this program or others.
func fullMachine(results []result) (notes []string) {
	const nearlyAll = 0.9
	for _, r := range results {
		for _, part := range []struct {
			name string
			phase
		}{{"were created and claimed", r.claiming}, {"moved", r.moving}, {"ended", r.ending}} {
			if busy := part.cpus(part.after.machineCPU - part.before.machineCPU); busy > nearlyAll*float64(runtime.NumCPU()) {
				notes = append(notes, fmt.Sprintf("%d agents: while the volumes %s, %.2f of %d processors were busy, %.2f of them with API server, etcd and agents: the times are those of a full machine.",
					r.agents, part.name, busy, runtime.NumCPU(), part.cpus(part.after.cpu()-part.before.cpu())))
			}
		}
	}
	return notes
}

// cpu is the time of all programs that were counted.
func (u usage) cpu() time.Duration { return u.apiCPU + u.etcdCPU + u.ownCPU }

func (p phase) seconds() string { return fmt.Sprintf("%.1f", p.took.Seconds()) }

func (p phase) kibibytes() string {
	return fmt.Sprintf("%d, %d", p.received.median>>10, p.received.most>>10)
}

func (p phase) kibibytesPerMinute() string {
	perMinute := func(n int64) float64 { return float64(n) / (1 << 10) / p.took.Minutes() }
	return fmt.Sprintf("%.0f, %.0f", perMinute(p.received.median), perMinute(p.received.most))
}

func (p phase) etcdGrowth() string {
	return fmt.Sprintf("%.1f", (p.after.etcdSize-p.before.etcdSize)/(1<<20)/p.took.Minutes())
}

// cpus is how many processors were in use for a CPU time of the phase.
func (p phase) cpus(used time.Duration) float64 { return used.Seconds() / p.took.Seconds() }

func (p phase) allCPUs() string {
	return fmt.Sprintf("%.2f, %.2f, %.2f", p.cpus(p.after.apiCPU-p.before.apiCPU), p.cpus(p.after.etcdCPU-p.before.etcdCPU), p.cpus(p.after.ownCPU-p.before.ownCPU))
}

func (p phase) quantile(q float64) string {
	if len(p.writes) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(p.writes[int(q*float64(len(p.writes)-1))])/float64(time.Millisecond))
}
