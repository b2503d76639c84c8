package restic

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestLockOwner(t *testing.T) {
	t.Parallel()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	gone := exec.CommandContext(t.Context(), "/bin/true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		pid  int
		host string
		age  time.Duration
		dead bool
	}{
		"lives here":                     {os.Getpid(), host, time.Minute, false},
		"died here":                      {gone.Process.Pid, host, time.Minute, true},
		"elsewhere, nobody knows":        {gone.Process.Pid, "node b", 29 * time.Minute, false},
		"not renewed for half an hour":   {7, "node-b", 31*time.Minute + 1500*time.Millisecond, true},
		"lives here, but does not renew": {os.Getpid(), host, 3 * time.Hour, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := fmt.Sprintf("unable to create lock in backend: repository is already locked exclusively by PID %d on %s by root (UID 0, GID 0)\n"+
				"lock was created at 2026-07-01 10:00:05 (%v ago)\nstorage ID c00e3a83\nthe `unlock` command can be used to remove stale locks", test.pid, test.host, test.age)
			owner, ok := parseLockOwner(text)
			want := fmt.Sprintf("locked exclusively by PID %d on %s as root since 2026-07-01 10:00:05", test.pid, test.host)
			if !ok || owner.String() != want {
				t.Errorf("got %v, %v, want %s", owner, ok, want)
			}
			if owner.dead() != test.dead {
				t.Errorf("dead: got %v, want %v", owner.dead(), test.dead)
			}
		})
	}
	if owner, ok := parseLockOwner("something else"); ok {
		t.Errorf("got %v", owner)
	}
}
