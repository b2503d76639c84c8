//go:build bench

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/plimsoll-io/plimsoll/test/controlplane"
	"github.com/plimsoll-io/plimsoll/test/loopback"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
	"github.com/plimsoll-io/plimsoll/test/testenv"
	"github.com/plimsoll-io/plimsoll/test/velero"
)

const (
	backedUpItems = 5000
	itemRounds    = 3
	itemGoal      = 5 // times as many items per second as Velero
	itemBackup    = "items"
	itemSource    = "shop" // the namespace that is backed up
)

// TestItemRestore measures how many items per second the restore controller restores as it is installed, and a real Velero server whose client has no limit.
// Both restore the same backup of 5,000 ConfigMaps, made by the Velero server, into new namespaces of the same API server, in turns. Each runs during its own turns only.
func TestItemRestore(t *testing.T) {
	runtime.LockOSThread() // the kernel ends a child when the thread ends that made it
	defer runtime.UnlockOSThread()
	ours, theirs := newItemSides(t)
	theirs.run(theirs.backUp)
	var ratios []float64
	for round := range itemRounds {
		sides := []*itemSide{ours, theirs}
		if round%2 == 1 {
			slices.Reverse(sides)
		}
		for _, s := range sides {
			s.run(func() { s.restore(round + 1) })
		}
		ratios = append(ratios, ours.rates[round]/theirs.rates[round])
	}
	for _, list := range [][]float64{ours.rates, theirs.rates, ratios} {
		slices.Sort(list)
	}
	measured := fmt.Sprintf("%.0f items/s, Velero %s %.0f: %.2f times as many (%.2f to %.2f)",
		median(ours.rates), controlplane.LatestVelero, median(theirs.rates), median(ratios), ratios[0], ratios[len(ratios)-1])
	addAgentGoal(fmt.Sprintf("item restore, %d ConfigMaps", backedUpItems), measured, fmt.Sprintf("%d times as many", itemGoal), median(ratios) >= itemGoal)
}

// itemSide is a program that restores items, with the namespace that it serves.
type itemSide struct {
	*testenv.Env

	name    string
	command []string
	rates   []float64 // items per second of each round
}

// newItemSides prepares an API server and a bucket for both sides.
func newItemSides(t *testing.T) (ours, theirs *itemSide) {
	t.Helper()
	server := s3.Start(t)
	bucket := server.Bucket(t)
	e := testenv.New(t, testenv.Options{Namespace: "velero"})
	e.CreateNamespaces("plimsoll", itemSource)
	ours = &itemSide{Env: e.In("plimsoll"), name: "ours", command: []string{
		parts.RestoreController(t), "server", "--restore-helper-image=agent", "--download-address=",
	}}
	plugins := t.TempDir()
	if err := os.Symlink(parts.VeleroPluginForAWS(t), filepath.Join(plugins, "velero-plugin-for-aws")); err != nil {
		t.Fatal(err)
	}
	theirs = &itemSide{Env: e, name: "velero", command: []string{
		parts.Velero(t), "server", "--plugin-dir=" + plugins, "--profiler-address=" + loopback.ForTest(t), "--client-qps=1000000", "--client-burst=1000000",
	}}
	for _, s := range []*itemSide{ours, theirs} {
		s.command = append(s.command, "--namespace="+s.Namespace, "--kubeconfig="+s.Plane.Kubeconfig(), "--metrics-address="+loopback.ForTest(t))
		s.Create(s.BucketLocation(velero.Location, server, bucket))
	}
	theirs.Create(theirs.deployment())
	return ours, theirs
}

// deployment is the Velero server's own, from which its restores read their image.
func (s *itemSide) deployment() *appsv1.Deployment {
	labels := map[string]string{"deploy": "velero"}
	return &appsv1.Deployment{ObjectMeta: s.Meta("velero"), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "velero", Image: "velero/velero:v" + controlplane.LatestVelero}}},
		},
	}}
}

// run runs the side's program while do does something. Only one Velero server can run on a machine: it always listens on port 8080, too.
func (s *itemSide) run(do func()) {
	s.T.Helper()
	location := &velerov1.BackupStorageLocation{ObjectMeta: s.Meta(velero.Location)}
	s.Get(location)
	s.Change(location, func() { location.Status = velerov1.BackupStorageLocationStatus{} }) // what the program wrote during its last turn
	var log bytes.Buffer
	program := exec.CommandContext(s.T.Context(), s.command[0], s.command[1:]...)
	program.Env = []string{"TMPDIR=" + s.T.TempDir()}
	program.Stdout, program.Stderr = &log, &log
	program.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := program.Start(); err != nil {
		s.T.Fatal(err)
	}
	defer func() {
		_ = program.Process.Signal(syscall.SIGTERM) // so that Velero ends its plugins
		_ = program.Wait()
		if s.T.Failed() {
			s.T.Logf("%s ends with:\n%s", s.name, log.Bytes()[max(0, log.Len()-logTail):])
		}
	}()
	testenv.EventuallyGet(s.Env, location, "taken by "+s.name, func(l *velerov1.BackupStorageLocation, err error) bool {
		return err == nil && l.Status.Phase == velerov1.BackupStorageLocationPhaseAvailable
	})
	do()
}

// logTail is how much of a program's log a failed test shows.
const logTail = 16 << 10

// backUp fills a namespace and has the Velero server back it up.
func (s *itemSide) backUp() {
	s.T.Helper()
	items := make(chan int)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for i := range items {
				item := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: itemSource, Name: itemName(i)}, Data: itemData(i)}
				if err := s.Client.Create(s.T.Context(), item); err != nil {
					s.T.Error(err)
				}
			}
		})
	}
	for i := range backedUpItems {
		items <- i
	}
	close(items)
	workers.Wait()
	s.Create(&velerov1.Backup{ObjectMeta: s.Meta(itemBackup), Spec: velerov1.BackupSpec{
		StorageLocation: velero.Location, IncludedNamespaces: []string{itemSource},
	}})
	s.awaitBackup()
}

// awaitBackup waits until the backup is there and has ended.
func (s *itemSide) awaitBackup() {
	s.T.Helper()
	backup := testenv.EventuallyGet(s.Env, &velerov1.Backup{ObjectMeta: s.Meta(itemBackup)}, "ended", func(b *velerov1.Backup, err error) bool {
		return err == nil && b.Status.CompletionTimestamp != nil
	})
	if backup.Status.Phase != velerov1.BackupPhaseCompleted || backup.Status.Progress.ItemsBackedUp < backedUpItems {
		s.T.Fatalf("the backup is %+v", backup.Status)
	}
}

func itemName(i int) string { return fmt.Sprintf("item-%04d", i) }

func itemData(i int) map[string]string {
	return map[string]string{"number": strconv.Itoa(i), "text": strings.Repeat(fmt.Sprintf("content %04d of the item", i), 10)}
}

// restore restores the backup into a new namespace, measures how long that takes until the Restore is Completed, and checks the items.
func (s *itemSide) restore(round int) {
	s.T.Helper()
	s.awaitBackup()
	into := fmt.Sprintf("%s-%d", s.name, round)
	restore := &velerov1.Restore{ObjectMeta: s.Meta(into), Spec: velerov1.RestoreSpec{
		BackupName: itemBackup, NamespaceMapping: map[string]string{itemSource: into},
	}}
	changes, err := s.Client.Watch(s.T.Context(), &velerov1.RestoreList{}, client.InNamespace(s.Namespace))
	if err != nil {
		s.T.Fatal(err)
	}
	defer changes.Stop()
	began := time.Now()
	s.Create(restore)
	for restore.Status.CompletionTimestamp == nil {
		change, open := <-changes.ResultChan()
		if !open {
			s.T.Fatal("the watch of the Restores has ended")
		}
		if seen, ok := change.Object.(*velerov1.Restore); ok && seen.Name == into {
			restore = seen
		}
	}
	took := time.Since(began)
	if status := restore.Status; status.Phase != velerov1.RestorePhaseCompleted || status.Errors > 0 || status.Warnings > 0 {
		s.T.Errorf("restore %s is %+v", into, status)
	}
	s.checkItems(into)
	s.rates = append(s.rates, backedUpItems/took.Seconds())
	s.T.Logf("%s, round %d: %.1f s", s.name, round, took.Seconds())
}

// checkItems compares what is in a namespace with what was backed up, and deletes it: later rounds shall not find a fuller API server.
func (s *itemSide) checkItems(namespace string) {
	s.T.Helper()
	var items corev1.ConfigMapList
	if err := s.Client.List(s.T.Context(), &items, client.InNamespace(namespace)); err != nil {
		s.T.Fatal(err)
	}
	found := map[string]map[string]string{}
	for i := range items.Items {
		found[items.Items[i].Name] = items.Items[i].Data
	}
	wrong := 0
	for i := range backedUpItems {
		if !maps.Equal(found[itemName(i)], itemData(i)) {
			wrong++
		}
	}
	if wrong > 0 || len(found) != backedUpItems {
		s.T.Errorf("%s has %d ConfigMaps, and of those that were backed up %d are missing or differ", namespace, len(found), wrong)
	}
	s.Eventually("the ConfigMaps of "+namespace+" are deleted", func() bool { // an API server ends a request after a minute
		return s.Client.DeleteAllOf(s.T.Context(), &corev1.ConfigMap{}, client.InNamespace(namespace)) == nil
	})
}
