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
)

// result is what a run has measured.
type result struct {
	agents               int
	claim, end           time.Duration
	claimBytes, endBytes bytesSpread
	moving               time.Duration
	movingBytes          bytesSpread
	writes               []time.Duration // sorted
	before, after        usage
}

// countMoving counts while all volumes move.
func (r *result) countMoving(ctx context.Context, f *fleet, moving time.Duration) (err error) {
	if r.before, err = f.usage(ctx); err != nil {
		return err
	}
	received, begin := f.received(), time.Now()
	f.writes.take()
	if err := wait(ctx, moving); err != nil {
		return err
	}
	r.moving, r.movingBytes, r.writes = time.Since(begin), spread(f.received(), received), f.writes.take()
	r.after, err = f.usage(ctx)
	return err
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
func printTable(results []result) error {
	fmt.Printf("%s: %d processors, %s\n\n", time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.Version())
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
	row("all volumes created and claimed, s", func(r result) string { return seconds(r.claim) })
	row("received by an agent meanwhile, KiB: median", func(r result) string { return kibibytes(r.claimBytes.median) })
	row("... most", func(r result) string { return kibibytes(r.claimBytes.most) })
	row("moving: received by an agent, KiB/min: median", func(r result) string { return r.perMinute(r.movingBytes.median) })
	row("... most", func(r result) string { return r.perMinute(r.movingBytes.most) })
	row("patches/s", func(r result) string { return fmt.Sprintf("%.1f", float64(len(r.writes))/r.moving.Seconds()) })
	row("a patch, ms: median", func(r result) string { return r.quantile(0.5) })
	row("... p99", func(r result) string { return r.quantile(0.99) })
	row("API server, CPUs", func(r result) string { return r.cpus(r.after.apiCPU - r.before.apiCPU) })
	row("API server, MiB", func(r result) string { return strconv.FormatInt(r.after.apiMemory>>20, 10) })
	row("etcd, CPUs", func(r result) string { return r.cpus(r.after.etcdCPU - r.before.etcdCPU) })
	row("etcd, MiB", func(r result) string { return strconv.FormatInt(r.after.etcdMemory>>20, 10) })
	row("etcd's database grows, MiB/min", func(r result) string {
		return fmt.Sprintf("%.1f", (r.after.etcdSize-r.before.etcdSize)/(1<<20)/r.moving.Minutes())
	})
	row("all agents in one process, CPUs", func(r result) string { return r.cpus(r.after.ownCPU - r.before.ownCPU) })
	row("all volumes ended, s", func(r result) string { return seconds(r.end) })
	row("received by an agent meanwhile, KiB: median", func(r result) string { return kibibytes(r.endBytes.median) })
	row("... most", func(r result) string { return kibibytes(r.endBytes.most) })
	return t.Flush()
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) }

func kibibytes(n int64) string { return strconv.FormatInt(n>>10, 10) }

func (r result) perMinute(n int64) string {
	return fmt.Sprintf("%.0f", float64(n)/(1<<10)/r.moving.Minutes())
}

func (r result) cpus(used time.Duration) string {
	return fmt.Sprintf("%.2f", used.Seconds()/r.moving.Seconds())
}

func (r result) quantile(q float64) string {
	if len(r.writes) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", float64(r.writes[int(q*float64(len(r.writes)-1))])/float64(time.Millisecond))
}
