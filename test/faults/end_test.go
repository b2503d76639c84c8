//go:build faults

package faults

import (
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// The moment at which most can be lost, or done twice, is that of the terminal write.

func TestAgentIsKilledBeforeTheTerminalWrite(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader+"/backup", func(t *testing.T) {
			r := newRow(t, "agent killed before the terminal write of a backup, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			pvb := f.NewBackup(source, "data", uploader)
			f.killBeforeEnd(pvb)
			f.resume(r, pvb)
			f.Complete(pvb)
			f.restoreAndCompare(pvb)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			r := newRow(t, "agent killed before the terminal write of a restore, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			a := f.Start()
			pvb := f.NewBackup(source, "data", uploader)
			f.Create(pvb)
			stored := rig.SnapshotOf(f.Complete(pvb))
			a.Stop()

			target := f.WaitingPod("target", "data")
			pvr := f.NewRestore(target, "data", stored)
			f.killBeforeEnd(pvr)
			// From here on the pod may run. What it changes must stay.
			changed := filepath.Join(f.Volume(target, "data"), "written by the pod")
			if err := os.WriteFile(changed, []byte("changed by the pod"), 0o644); err != nil {
				t.Fatal(err)
			}
			f.resume(r, pvr)
			f.Complete(pvr)
			if content, err := os.ReadFile(changed); err != nil || string(content) != "changed by the pod" {
				t.Errorf("the next agent has written into a volume that the pod uses: %q, %v", content, err)
			}
		})
	}
}

func TestAgentIsKilledAfterTheTerminalWrite(t *testing.T) {
	t.Parallel()
	for _, uploader := range []string{rig.Restic, rig.Kopia} {
		t.Run(uploader+"/backup", func(t *testing.T) {
			newRow(t, "agent killed after the terminal write of a backup, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			pvb := f.NewBackup(source, "data", uploader)
			f.killAfterEnd(pvb)
			f.Start()
			f.restoreAndCompare(pvb) // the next agent works
			f.checkOneTerminalWrite(pvb)
		})
		t.Run(uploader+"/restore", func(t *testing.T) {
			newRow(t, "agent killed after the terminal write of a restore, %s", uploader)
			t.Parallel()
			f, source := smallVolume(t, uploader)
			a := f.Start()
			pvb := f.NewBackup(source, "data", uploader)
			f.Create(pvb)
			stored := rig.SnapshotOf(f.Complete(pvb))
			a.Stop()

			target := f.WaitingPod("target", "data")
			pvr := f.NewRestore(target, "data", stored)
			f.killAfterEnd(pvr)
			f.Start()
			f.restoreAndCompare(pvb) // the next agent works
			f.checkOneTerminalWrite(pvr)
			f.CheckRestored(f.Volume(source, "data"), f.Volume(target, "data"), uploader)
		})
	}
}

// killBeforeEnd lets an agent work on o until it wants to write the end, and kills it instead.
func (f *fixture) killBeforeEnd(o client.Object) {
	f.T.Helper()
	gate := testenv.NewGate()
	held := f.API.On(rig.IsTerminalWrite, gate.Before)
	a := f.Start()
	f.Create(o)
	gate.Wait(f.T)
	a.Kill()
	f.API.Heal(held)
	f.checkInterrupted(o)
}

// killAfterEnd lets an agent work on o and kills it before it learns that the end is written.
func (f *fixture) killAfterEnd(o client.Object) {
	f.T.Helper()
	gate := testenv.NewGate()
	held := f.API.On(rig.IsTerminalWrite, gate.After)
	a := f.Start()
	f.Create(o)
	gate.Wait(f.T)
	a.Kill()
	f.API.Heal(held)
	f.Complete(o)
}

// checkOneTerminalWrite holds that no agent has even tried to write the end a second time.
func (f *fixture) checkOneTerminalWrite(o client.Object) {
	f.T.Helper()
	if n := f.API.SentTo(o.GetName()).Terminal; n != 1 {
		f.T.Errorf("%s: %d terminal writes were sent", o.GetName(), n)
	}
}
