//go:build faults

package faults

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The moment at which most can be lost, or done twice, is that of the terminal write.

func TestAgentIsKilledBeforeTheTerminalWrite(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader+"/backup", func(t *testing.T) {
			r := newRow(t, "agent killed before the terminal write of a backup, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			pvb := f.newBackup(source, "data", uploader)
			f.killBeforeEnd(pvb)
			f.resume(r, pvb)
			f.complete(pvb)
			f.restoreAndCompare(pvb)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			r := newRow(t, "agent killed before the terminal write of a restore, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			a := f.start()
			pvb := f.newBackup(source, "data", uploader)
			f.create(pvb)
			stored := snapshotOf(f.complete(pvb))
			a.stop()

			target := f.waitingPod("target", "data")
			pvr := f.newRestore(target, "data", stored)
			f.killBeforeEnd(pvr)
			// From here on the pod may run. What it changes must stay.
			changed := filepath.Join(f.volume(target, "data"), "written by the pod")
			if err := os.WriteFile(changed, []byte("changed by the pod"), 0o644); err != nil {
				t.Fatal(err)
			}
			f.resume(r, pvr)
			f.complete(pvr)
			if content, err := os.ReadFile(changed); err != nil || string(content) != "changed by the pod" {
				t.Errorf("the next agent has written into a volume that the pod uses: %q, %v", content, err)
			}
		})
	}
}

func TestAgentIsKilledAfterTheTerminalWrite(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{restic, kopia} {
		t.Run(uploader+"/backup", func(t *testing.T) {
			newRow(t, "agent killed after the terminal write of a backup, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			pvb := f.newBackup(source, "data", uploader)
			f.killAfterEnd(pvb)
			f.start()
			f.restoreAndCompare(pvb) // the next agent works
			f.checkOneTerminalWrite(pvb)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			newRow(t, "agent killed after the terminal write of a restore, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			a := f.start()
			pvb := f.newBackup(source, "data", uploader)
			f.create(pvb)
			stored := snapshotOf(f.complete(pvb))
			a.stop()

			target := f.waitingPod("target", "data")
			pvr := f.newRestore(target, "data", stored)
			f.killAfterEnd(pvr)
			f.start()
			f.restoreAndCompare(pvb) // the next agent works
			f.checkOneTerminalWrite(pvr)
			f.checkRestored(f.volume(source, "data"), f.volume(target, "data"), uploader)
		})
	}
}

// killBeforeEnd lets an agent work on o until it wants to write the end, and kills it instead.
func (f *fixture) killBeforeEnd(o client.Object) {
	f.t.Helper()
	gate := newGate()
	held := f.api.on(isTerminalWrite, gate.before)
	a := f.start()
	f.create(o)
	gate.wait(f.t)
	a.kill()
	f.api.heal(held)
	f.checkInterrupted(o)
}

// killAfterEnd lets an agent work on o and kills it before it learns that the end is written.
func (f *fixture) killAfterEnd(o client.Object) {
	f.t.Helper()
	gate := newGate()
	held := f.api.on(isTerminalWrite, gate.after)
	a := f.start()
	f.create(o)
	gate.wait(f.t)
	a.kill()
	f.api.heal(held)
	f.complete(o)
}

// checkOneTerminalWrite holds that no agent has even tried to write the end a second time.
func (f *fixture) checkOneTerminalWrite(o client.Object) {
	f.t.Helper()
	if n := f.api.sentTo(o.GetName()).terminal; n != 1 {
		f.t.Errorf("%s: %d terminal writes were sent", o.GetName(), n)
	}
}
