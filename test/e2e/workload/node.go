package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// describeAgent writes what the kernel says of the node agent's process: what it is allowed to, not what was asked for.
func describeAgent(node string, out io.Writer) error {
	pid, err := findAgent(node)
	if err != nil {
		return err
	}
	said := map[string]string{}
	status, err := os.ReadFile(procFile(pid, "status"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		if slices.Contains([]string{"Uid", "Seccomp", "NoNewPrivs", "CapEff", "CapBnd"}, key) {
			said[key] = strings.Join(strings.Fields(value), " ")
		}
	}
	mounts, err := os.ReadFile(procFile(pid, "mounts"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); fields[1] == "/" {
			said["Root"], _, _ = strings.Cut(fields[3], ",") // ro or rw
		}
	}
	return json.NewEncoder(out).Encode(said)
}

func killAgent(node string) error {
	pid, err := findAgent(node)
	if err != nil {
		return err
	}
	return unix.Kill(pid, unix.SIGKILL)
}

// findAgent returns the process of the node's agent. There can be other nodes' processes below those of this one.
func findAgent(node string) (int, error) {
	for _, pid := range processes() {
		if program(pid) != "node-agent" {
			continue
		}
		command, err := os.ReadFile(procFile(pid, "cmdline"))
		if err != nil || !bytes.HasPrefix(command, []byte("/usr/local/bin/node-agent\x00server\x00")) {
			continue // it has ended, or is a worker
		}
		environment, err := os.ReadFile(procFile(pid, "environ"))
		if err == nil && slices.Contains(strings.Split(string(environment), "\x00"), "NODE_NAME="+node) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no node agent of %s runs here", node)
}

// killPods kills all processes of pods, their sandboxes included. A sandbox shares its network with the pod's containers, and these
// have kubelet's file of the pod as /etc/hosts.
func killPods(uids []string) error {
	for _, uid := range uids {
		networks := map[string]bool{}
		for _, pid := range processes() {
			if mounts, err := os.ReadFile(procFile(pid, "mountinfo")); err == nil && bytes.Contains(mounts, []byte("/"+uid+"/etc-hosts /etc/hosts ")) {
				networks[networkOf(pid)] = true
			}
		}
		if len(networks) != 1 || networks[""] || networks[networkOf(1)] {
			return fmt.Errorf("pod %s has the networks %v, want one of its own", uid, slices.Collect(maps.Keys(networks)))
		}
		for _, pid := range processes() {
			if networks[networkOf(pid)] {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
					return fmt.Errorf("kill process %d of pod %s: %w", pid, uid, err)
				}
			}
		}
	}
	return nil
}

// networkOf names a process's network namespace, empty when it has ended.
func networkOf(pid int) string {
	name, err := os.Readlink(procFile(pid, "ns/net"))
	if err != nil {
		return ""
	}
	return name
}

// awaitNoLeftovers waits a while until there are no leftovers, and writes which there are then.
func awaitNoLeftovers(ctx context.Context, pods []string, out io.Writer) error {
	deadline := time.After(time.Minute)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		var left bytes.Buffer
		if err := listLeftovers(pods, &left); err != nil || left.Len() == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-deadline:
			_, err := left.WriteTo(out)
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// listLeftovers writes a line for each process of an agent or a worker, and for each mount of one of the pods.
func listLeftovers(pods []string, out io.Writer) error {
	for _, pid := range processes() {
		if name := program(pid); name == "node-agent" || name == "restic" {
			command, _ := os.ReadFile(procFile(pid, "cmdline")) // it may have ended
			fmt.Fprintf(out, "process %d: %s\n", pid, bytes.ReplaceAll(command, []byte{0}, []byte{' '}))
		}
	}
	mounts, err := os.Open(procFile(1, "mounts"))
	if err != nil {
		return err
	}
	defer mounts.Close()
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		if slices.ContainsFunc(pods, func(uid string) bool { return strings.Contains(lines.Text(), uid) }) {
			fmt.Fprintf(out, "mount: %s\n", lines.Text())
		}
	}
	return lines.Err()
}

func procFile(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// program is the name of a process's program, empty when it has ended.
func program(pid int) string {
	path, err := os.Readlink(procFile(pid, "exe"))
	if err != nil {
		return ""
	}
	return filepath.Base(path)
}
