package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
	"github.com/plimsoll-io/plimsoll/cmd/kubectl-plimsoll/internal/live"
	"github.com/plimsoll-io/plimsoll/pkg/describe"
	"github.com/plimsoll-io/plimsoll/pkg/progress"
)

// What top shows.
const (
	topNodes   = "nodes"
	topVolumes = "volumes"
)

// load is what top prints.
type load struct {
	Nodes   []nodeLoad        `json:"nodes,omitzero"`
	Volumes []describe.Volume `json:"volumes,omitzero"`
	Notes   []string          `json:"notes,omitempty"`

	at time.Time
}

// nodeLoad is what a node's agent has to do.
type nodeLoad struct {
	describe.Node
	Moving         int   `json:"moving"` // volumes that have a slot, stalled ones among them, silent ones not
	Stalled        int   `json:"stalled"`
	Silent         int   `json:"silent"` // volumes whose agent no longer reports
	Queued         int   `json:"queued"`
	Failed         int   `json:"failed"` // in the last minutes
	Errors         int64 `json:"errors"` // files that could not be read or written, of all these volumes
	BytesPerSecond int64 `json:"bytesPerSecond"`
}

func topCommand(c *connection) *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "top [nodes|volumes]",
		Short: "Show the nodes and volumes that move most",
		Long: `Prints the load of each node agent, and the volumes that are backed up and restored, the fastest first. Volumes that failed
in the last ten minutes are included.`,
		Example: `  kubectl plimsoll top
  kubectl plimsoll top nodes
  kubectl plimsoll top volumes -o json`,
		ValidArgs: []string{topNodes, topVolumes},
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 || len(args) == 1 && args[0] != topNodes && args[0] != topVolumes {
				return program.Misused(fmt.Errorf("%q is neither nodes nor volumes", args))
			}
			return o.validate()
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := c.follow(live.Selection{})
			if err != nil {
				return err
			}
			view, err := live.Look(cmd.Context(), options)
			if err != nil {
				return err
			}
			loads := loadOf(&view)
			nodes, volumes := true, true
			if len(args) == 1 {
				nodes, volumes = args[0] == topNodes, args[0] == topVolumes
			}
			if !nodes {
				loads.Nodes = nil
			}
			if !volumes {
				loads.Volumes = nil
			}
			for _, note := range loads.Notes {
				fmt.Fprintf(cmd.ErrOrStderr(), "note: %s\n", describe.Clean(note))
			}
			return o.print(cmd.OutOrStdout(), loads, func(w io.Writer) error { return loads.table(w, nodes, volumes) })
		},
	}
	o.addFlag(cmd)
	return cmd
}

// loadOf takes what moves, waits or has failed, the fastest first.
func loadOf(v *describe.View) load {
	all := load{Nodes: []nodeLoad{}, Volumes: []describe.Volume{}, Notes: v.Notes, at: v.At}
	byNode := map[string]*nodeLoad{}
	for _, n := range v.Nodes {
		if n.Name != "" && byNode[n.Name] == nil { // the pod may not have one yet
			byNode[n.Name] = &nodeLoad{Node: n}
		}
	}
	for _, x := range v.Volumes {
		if x.Ended() && x.Progress.State != progress.StateFailed {
			continue
		}
		all.Volumes = append(all.Volumes, x)
		if byNode[x.Node] == nil && x.Node != "" {
			byNode[x.Node] = &nodeLoad{Node: describe.Node{Name: x.Node}} // without an agent
		}
		if n := byNode[x.Node]; n != nil {
			n.add(&x, v.At)
		}
	}
	for _, n := range byNode {
		all.Nodes = append(all.Nodes, *n)
	}
	slices.SortFunc(all.Nodes, func(a, b nodeLoad) int {
		return cmp.Or(cmp.Compare(b.BytesPerSecond, a.BytesPerSecond), cmp.Compare(b.Queued, a.Queued), cmp.Compare(a.Name, b.Name))
	})
	slices.SortStableFunc(all.Volumes, func(a, b describe.Volume) int { return cmp.Compare(speed(&b), speed(&a)) })
	return all
}

func (n *nodeLoad) add(v *describe.Volume, now time.Time) {
	p := &v.Progress
	n.Errors += p.Errors
	switch {
	case v.Silent(now):
		n.Silent++
		return
	case p.State == progress.StateFailed:
		n.Failed++
	case waits(p.State):
		n.Queued++
	default:
		n.Moving++
		n.BytesPerSecond += p.BytesPerSecond
	}
	if p.State == progress.StateStalled {
		n.Stalled++
	}
}

// speed is that of what has not ended.
func speed(v *describe.Volume) int64 {
	if v.Ended() {
		return -1
	}
	return v.Progress.BytesPerSecond
}

func (l *load) table(w io.Writer, nodes, volumes bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if nodes {
		fmt.Fprintln(t, "NODE\tAGENT\tREADY\tMOVING\tSTALLED\tSILENT\tQUEUED\tFAILED\tERRORS\tRATE")
		for _, n := range l.Nodes {
			fmt.Fprintf(t, "%s\t%s\t%t\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", describe.Clean(n.Name), cmp.Or(describe.Clean(n.Agent), "none"), n.Ready,
				n.Moving, n.Stalled, n.Silent, n.Queued, n.Failed, n.Errors, describe.Rate(n.BytesPerSecond))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if nodes && volumes {
		fmt.Fprintln(w)
	}
	if volumes {
		fmt.Fprintln(t, "VOLUME\tNODE\tSTATE\t%\tDONE\tTOTAL\tRATE\tETA\tERRORS")
		for i := range l.Volumes {
			fmt.Fprintln(t, volumeRow(&l.Volumes[i], l.at))
		}
	}
	return t.Flush()
}

func volumeRow(v *describe.Volume, now time.Time) string {
	p := &v.Progress
	name, state, total, rate, eta := v.Volume, string(p.State), "-", "-", "-"
	if v.Pod != "" {
		name = v.PodNamespace + "/" + v.Pod + "/" + v.Volume
	}
	switch {
	case v.Silent(now):
		state = "Silent " + describe.Age(now, p.Heartbeat)
	case p.QueuePosition > 0:
		state += " #" + strconv.Itoa(p.QueuePosition)
	}
	if p.TotalBytes > 0 {
		total = describe.Bytes(p.TotalBytes)
	}
	if !v.Ended() {
		eta = describe.ETA(p.ETASeconds)
	}
	if !v.Ended() && !waits(p.State) {
		rate = describe.Rate(p.BytesPerSecond)
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d", describe.Clean(name), cmp.Or(describe.Clean(v.Node), "-"), describe.Clean(state),
		describe.PercentOf(v.Percent()), describe.Bytes(p.BytesDone), total, rate, eta, p.Errors)
}

// waits reports whether a volume has no slot yet.
func waits(s progress.State) bool { return s == progress.StateQueued || s == progress.StateWaiting }
