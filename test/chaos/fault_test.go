//go:build chaos

package chaos

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/test/faultfs"
	"github.com/plimsoll-io/plimsoll/test/rig"
	"github.com/plimsoll-io/plimsoll/test/testenv"
)

// operation is what a plan does.
type operation string

const (
	backup  operation = "backup"
	restore operation = "restore"
)

// fault is one of a schedule.
type fault struct {
	kind    kind
	at      trigger
	lasts   time.Duration // until it is healed, for those that are
	count   int           // how many requests or calls it hits, for those that count
	errno   syscall.Errno // for those of a file system
	variant int           // decides the rest
}

// String describes the fault.
func (f fault) String() string {
	return fmt.Sprintf("%s at %s (for %s, times %d, %s, variant %d)", f.kind.name, f.at, f.lasts, f.count, unix.ErrnoName(f.errno), f.variant)
}

// brokenErrnos is what a file system returns that has lost its device, its server or its driver for a while.
var brokenErrnos = []syscall.Errno{unix.EIO, unix.ESTALE, unix.ENOTCONN, unix.ESHUTDOWN, unix.EREMOTEIO}

// trigger is the event at which a fault strikes.
type trigger struct {
	event string
	n     int // the n-th such event of the operation
}

const (
	atWrite  = "write to the object"
	atEnd    = "terminal write"
	atStore  = "request to the store"
	atVolume = "call on the volume"
	atRepo   = "call on the repository"
)

func (t trigger) String() string { return fmt.Sprintf("%s %d", t.event, t.n) }

// newTrigger takes an event that the plan's operation has.
func newTrigger(r *rand.Rand, p plan, op operation) trigger {
	events := []string{atWrite, atWrite, atEnd}
	if p.store == inBucket {
		events = append(events, atStore, atStore)
	}
	if p.store == inFUSE {
		events = append(events, atRepo, atRepo)
	}
	if (op == backup && p.source == onFUSE) || (op == restore && p.target == onFUSE) {
		events = append(events, atVolume, atVolume, atVolume)
	}
	t := trigger{event: pick(r, events...), n: 1}
	switch t.event {
	case atWrite:
		t.n = 1 + r.IntN(4)
	case atStore:
		t.n = 1 + r.IntN(30)
	case atVolume, atRepo:
		t.n = 1 << r.IntN(12)
		t.n += r.IntN(t.n)
	}
	return t
}

// kind is a kind of fault. strike makes it, and returns what heals it, which may be nil.
type kind struct {
	name        string
	recoverable bool // an operation must be Completed in spite of it
	weight      int  // how often it is taken, compared with others
	possible    func(p plan, op operation) bool
	strike      func(r *run, f fault, op operation) (heal func())
}

// kinds are all faults there are.
var kinds = []kind{
	{"agent killed", true, 4, nil, func(r *run, _ fault, _ operation) func() { r.endAgent((*rig.Agent).Kill); return r.startAgent }},
	{"agent stopped", true, 4, nil, func(r *run, _ fault, _ operation) func() { r.endAgent((*rig.Agent).Stop); return r.startAgent }},
	{"agent frozen", true, 2, nil, func(r *run, _ fault, _ operation) func() { return r.freeze(r.processes()) }},
	{"worker killed", true, 3, nil, func(r *run, f fault, _ operation) func() { r.killWorkers(f); return nil }},
	{"worker frozen", true, 1, nil, func(r *run, f fault, _ operation) func() { return r.freeze(r.awaitWorkers(f)) }},
	{"clock jumps", true, 1, clocks, func(r *run, f fault, _ operation) func() { return r.jump(f) }},

	{"API server down", true, 2, nil, func(r *run, _ fault, _ operation) func() { r.f.API.Down(); return func() { r.f.API.Up(r.t) } }},
	{"API server refuses", true, 2, nil, func(r *run, f fault, _ operation) func() { return r.onAPI(f, refusal(f)) }},
	{"answer of the API server lost", true, 2, nil, func(r *run, f fault, _ operation) func() { return r.onAPI(f, testenv.LoseAnswer) }},
	{"answer of the API server cut", true, 1, nil, func(r *run, f fault, _ operation) func() { return r.onAPI(f, testenv.CutAnswer) }},
	{"API server hangs", true, 1, nil, func(r *run, f fault, _ operation) func() { return r.onAPI(f, testenv.Delay(f.lasts)) }},
	{"watches reset", true, 1, nil, func(r *run, _ fault, _ operation) func() { r.f.API.Cut(testenv.IsWatch); return nil }},
	{"canceled", false, 1, nil, func(r *run, _ fault, _ operation) func() { r.patch(`{"spec":{"cancel":true}}`); return nil }},

	{"store down", true, 2, bucket, func(r *run, _ fault, _ operation) func() {
		r.f.Store.Proxy.Down()
		return func() { r.f.Store.Proxy.Up(r.t) }
	}},
	{"store busy", true, 2, bucket, func(r *run, f fault, _ operation) func() { return r.onStore(f, rig.Unavailable) }},
	{"connection to the store reset", true, 2, bucket, func(r *run, f fault, _ operation) func() { return r.onStore(f, testenv.HangUp) }},
	{"answer of the store cut", true, 3, bucket, func(r *run, f fault, _ operation) func() { return r.onStore(f, testenv.CutAnswer) }},
	{"answer of the store lost", true, 2, bucket, func(r *run, f fault, _ operation) func() { return r.onStore(f, testenv.LoseAnswer) }},
	{"store hangs", true, 1, bucket, func(r *run, f fault, _ operation) func() { return r.onStore(f, testenv.Delay(f.lasts)) }},
	{"store slow", true, 1, bucket, func(r *run, _ fault, _ operation) func() {
		r.f.Store.Proxy.Limit(256 << 10)
		return func() { r.f.Store.Proxy.Limit(0) }
	}},

	{"repository's disk fails", true, 4, repository, func(r *run, f fault, _ operation) func() {
		return inject(r.repo.driver(), faultfs.Fault{Op: pickOp(f, faultfs.Any, faultfs.Read, faultfs.Write, faultfs.Create, faultfs.Open), Times: f.count, Errno: f.errno})
	}},
	{"repository's disk hangs", true, 2, repository, func(r *run, _ fault, _ operation) func() {
		return inject(r.repo.driver(), faultfs.Fault{Hang: true})
	}},
	{"repository's disk full", false, 2, repository, func(r *run, _ fault, _ operation) func() {
		return inject(r.repo.driver(), faultfs.Fault{Op: faultfs.Write, Errno: unix.ENOSPC}, faultfs.Fault{Op: faultfs.Create, Errno: unix.ENOSPC})
	}},

	{"volume fails", true, 10, volume, func(r *run, f fault, op operation) func() {
		ops := []faultfs.Op{faultfs.Any, faultfs.Stat, faultfs.List, faultfs.Open, faultfs.Read}
		if op == restore {
			ops = []faultfs.Op{faultfs.Any, faultfs.Create, faultfs.Write, faultfs.Setattr}
		}
		return inject(r.volumes[op].driver(), faultfs.Fault{Op: pickOp(f, ops...), Times: f.count, Errno: f.errno})
	}},
	{"volume hangs", true, 3, volume, func(r *run, _ fault, op operation) func() {
		return inject(r.volumes[op].driver(), faultfs.Fault{Hang: true})
	}},
	{"driver of the volume dies", true, 8, volume, func(r *run, _ fault, op operation) func() { return r.remount(op) }},
	{"volume is broken for good", false, 3, volume, func(r *run, f fault, op operation) func() {
		return inject(r.volumes[op].driver(), faultfs.Fault{Errno: f.errno})
	}},
	{"files that may not be read", false, 4, reading, func(r *run, f fault, op operation) func() {
		paths := []string{"a file", "files/1/**", "files/1", "big/*", "links/*"}
		return inject(r.volumes[op].driver(), faultfs.Fault{
			Op: pickOp(f, faultfs.Open, faultfs.List, faultfs.Read), Path: paths[f.variant%len(paths)], Errno: unix.EACCES,
		})
	}},
	{"volume full", false, 3, writing, func(r *run, _ fault, op operation) func() {
		return inject(r.volumes[op].driver(), faultfs.Fault{Op: faultfs.Write, Errno: unix.ENOSPC}, faultfs.Fault{Op: faultfs.Create, Errno: unix.ENOSPC})
	}},
	{
		"volume really full", false, 6, func(p plan, op operation) bool { return op == restore && p.target == onRAM },
		func(r *run, _ fault, op operation) func() { r.volumes[op].fill(r.t); return nil },
	},
	{"volume loses what it flushes", false, 4, writing, func(r *run, f fault, op operation) func() {
		return inject(r.volumes[op].driver(), faultfs.Fault{Op: faultfs.Sync, Times: f.count, Errno: f.errno})
	}},
	{
		"power lost", true, 12, func(p plan, op operation) bool { return op == restore && p.target == onExt4 },
		func(r *run, _ fault, op operation) func() { r.losePower(op); return r.startAgent },
	},
}

func bucket(p plan, _ operation) bool     { return p.store == inBucket }
func repository(p plan, _ operation) bool { return p.store == inFUSE }
func reading(p plan, op operation) bool   { return op == backup && p.source == onFUSE }
func writing(p plan, op operation) bool   { return op == restore && p.target == onFUSE }
func volume(p plan, op operation) bool    { return reading(p, op) || writing(p, op) }

func pickOp(f fault, ops ...faultfs.Op) faultfs.Op { return ops[f.variant%len(ops)] }

func inject(fs *faultfs.FS, faults ...faultfs.Fault) func() {
	fs.Inject(faults...)
	return fs.Clear
}

// onAPI lets a fault happen to the next requests of some kind.
func (r *run) onAPI(f fault, do testenv.Fault) func() {
	matches := []func(*http.Request) bool{testenv.IsAny, rig.IsWrite, rig.IsWrite, rig.IsTerminalWrite, testenv.IsRead}
	rule := r.f.API.On(matches[f.variant%len(matches)], times(f.count, do))
	return func() { r.f.API.Heal(rule) }
}

// onStore is onAPI for the store.
func (r *run) onStore(f fault, do testenv.Fault) func() {
	matches := []func(*http.Request) bool{testenv.IsAny, rig.IsPut}
	rule := r.f.Store.Proxy.On(matches[f.variant%len(matches)], times(f.count, do))
	return func() { r.f.Store.Proxy.Heal(rule) }
}

// times lets a fault happen so often.
func times(n int, do testenv.Fault) testenv.Fault {
	var done atomic.Int64
	return func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if done.Add(1) <= int64(n) {
			do(w, req, next)
		} else {
			next.ServeHTTP(w, req)
		}
	}
}

// refusal is one of the answers of an API server that cannot or does not want to.
func refusal(f fault) testenv.Fault {
	answers := []struct {
		code   int
		reason metav1.StatusReason
	}{
		{http.StatusInternalServerError, metav1.StatusReasonInternalError},
		{http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests},
		{http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable},
		{http.StatusConflict, metav1.StatusReasonConflict},
		{http.StatusGatewayTimeout, metav1.StatusReasonTimeout},
	}
	a := answers[f.variant/8%len(answers)]
	return testenv.Refuse(a.code, a.reason, 0)
}

// names lists the names of faults.
func names(faults []fault) string {
	var all []string
	for _, f := range faults {
		all = append(all, f.kind.name)
	}
	return strings.Join(all, ", ")
}
