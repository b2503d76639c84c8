//go:build bench

package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// TestTimeLapse measures how much memory an agent has after 1 and 10 million lines of restic's progress. restic prints one each second, so that 10 million
// are those of 115 volumes that move for 24 hours. The lines come from a restic that does nothing else. All that reads, counts, shows and writes them is
// the agent's own, and its API server is a real one.
func TestTimeLapse(t *testing.T) {
	const million = 1_000_000
	f := rig.NewFixture(t)
	f.UseDirectory(filepath.Join(f.Dir, "store"))
	a := f.StartWith(rig.AgentOptions{Restic: filepath.Join(filepath.Dir(rig.AgentProgram()), "restic-torrent")})
	pod := f.Pod("pod", "data")
	dir := f.Volume(pod, "data")
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("pauses", fmt.Sprint(million, 10*million))
	pvb := f.NewBackup(pod, "data", rig.Restic)
	f.Create(pvb)

	var heaps []int
	var memories []resident
	for n := 1; n <= 10; n++ { // each with its own Patience
		f.Until(pvb, fmt.Sprint("at line ", n*million), func(v rig.Version) bool { return v.Done >= int64(n*million)<<10 })
		if n == 1 || n == 10 {
			heaps, memories = append(heaps, liveHeap(t, a)), append(memories, memory(t, a.Cmd.Process.Pid))
			write(fmt.Sprint("after-", n*million), "")
		}
	}
	f.Complete(pvb)
	addAgentRow("agent, after 1 million lines of restic", memories[0].String())
	addAgentRow("agent, after 10 million", fmt.Sprintf("%s: %+.1f MiB", memories[1], float64(memories[1].all-memories[0].all)/(1<<10)))
	const noGrowth = 1 << 20 // a byte for each of the 9 million lines would be nine times as much
	addAgentGoal("of that in use on the heap, after both", fmt.Sprintf("%.2f, %.2f MiB", float64(heaps[0])/(1<<20), float64(heaps[1])/(1<<20)), "no growth", heaps[1]-heaps[0] < noGrowth)
	a.Stop()
}

// liveHeap returns how many bytes of an agent's heap are in use, as two collections of garbage find one after the other. To be asked for its metrics is what
// makes an agent that does nothing else collect garbage.
func liveHeap(t *testing.T, a *rig.Agent) int {
	t.Helper()
	const collections, live = "go_gc_cycles_total_gc_cycles_total", "go_gc_heap_live_bytes"
	first := readMetrics(t, a, collections)[collections]
	var now map[string]float64
	testenv.Eventually(t, "two collections of garbage", func() bool {
		now = readMetrics(t, a, collections, live)
		return now[collections] >= first+2
	})
	return int(now[live])
}

// readMetrics returns those of an agent's metrics, without labels, that have the names.
func readMetrics(t *testing.T, a *rig.Agent, names ...string) map[string]float64 {
	t.Helper()
	answer, err := http.Get("http://" + a.Metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	found := map[string]float64{}
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		for _, name := range names {
			if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
				if found[name], err = strconv.ParseFloat(text, 64); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if len(found) != len(names) {
		t.Fatalf("of the metrics %v there are %v", names, found)
	}
	return found
}
