package kopia_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/progress"
	"github.com/plimsoll-io/plimsoll/pkg/uploader"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia"
	"github.com/plimsoll-io/plimsoll/pkg/uploader/uploadertest"
	"github.com/plimsoll-io/plimsoll/test/parts"
	"github.com/plimsoll-io/plimsoll/test/s3"
)

// maintenance is what kopia's own program says of it.
type maintenance struct {
	Owner    string `json:"owner"`
	Schedule struct {
		Runs map[string][]struct{ Success bool } `json:"runs"`
	} `json:"schedule"`
}

// TestPrune: a plan runs nothing, quick and full maintenance keep every snapshot, and kopia's own program sees that they ran.
func TestPrune(t *testing.T) {
	parts.Slow(t) // connect needs kopia's program
	t.Parallel()
	repository := initialized(t)
	s := forgetSubject(t, repository)
	s.Data = newUploader(t, kopia.Options{})
	left := uploadertest.RunForget(t, s)
	pruner := s.Data.(uploader.Pruner)
	info := func() (m maintenance) {
		connect(t, repository).decode(t, &m, "maintenance", "info")
		return m
	}
	plan, err := pruner.Prune(t.Context(), uploader.PruneRequest{Repository: repository, Full: true}, nil)
	if err != nil || plan.Plan != nil || plan.After != nil || plan.Snapshots != int64(len(left)) || !strings.Contains(plan.NotKnown, "only kopia's maintenance") {
		t.Fatalf("%+v, %v", plan, err)
	}
	if ran := info().Schedule.Runs; len(ran) > 0 {
		t.Errorf("a plan has run %v", ran)
	}
	for _, full := range []bool{false, true, true} {
		var before *uploader.StorageSize
		var seen uploadertest.Recorder
		got, err := pruner.Prune(t.Context(), uploader.PruneRequest{
			Repository: repository, Apply: true, Full: full, Measured: func(size *uploader.StorageSize) error { before = size; return nil },
		}, &seen)
		if err != nil || before == nil || before.PackBytes == 0 || got.After == nil || got.Snapshots != int64(len(left)) || len(got.Lost) > 0 {
			t.Fatalf("full is %v: %+v, %v", full, got, err)
		}
		m := info()
		gc := m.Schedule.Runs["snapshot-gc"]
		if m.Owner != "default@default" || full != (len(gc) > 0 && gc[0].Success) {
			t.Errorf("full is %v: %+v", full, m)
		}
		s.Has(t, left...)
		for _, id := range left {
			if proof, err := s.Data.Verify(t.Context(), uploader.VerifyRequest{Repository: repository, SnapshotID: id}, nil); err != nil || !proof.Proven() {
				t.Errorf("full is %v: snapshot %s: %+v, %v", full, id, proof, err)
			}
		}
	}
}

// TestPruneErrors: nothing is run in a repository that does not open or is read-only, nor where its size cannot be recorded.
func TestPruneErrors(t *testing.T) {
	t.Parallel()
	repository := initialized(t)
	s := forgetSubject(t, repository)
	id := s.Store(t, uploadertest.ShopVolume())
	pruner := s.Data.(uploader.Pruner)
	prune := func(change func(*uploader.PruneRequest)) error {
		req := uploader.PruneRequest{Repository: repository, Apply: true, Full: true}
		change(&req)
		_, err := pruner.Prune(t.Context(), req, nil)
		return err
	}
	refusal := errors.New("not now")
	for name, test := range map[string]struct {
		change func(*uploader.PruneRequest)
		want   error
	}{
		"wrong password": {func(r *uploader.PruneRequest) { r.Repository.Password = "another" }, uploader.ErrWrongPassword},
		"no repository":  {func(r *uploader.PruneRequest) { r.Repository.URL += "-gone" }, uploader.ErrRepositoryNotFound},
		"read-only":      {func(r *uploader.PruneRequest) { r.Repository.ReadOnly = true }, uploader.ErrUnsupported},
		"not recorded":   {func(r *uploader.PruneRequest) { r.Measured = func(*uploader.StorageSize) error { return refusal } }, refusal},
	} {
		if err := prune(test.change); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.Has(t, id)
}

// TestPruneOfAnother: nothing is run where somebody else owns the maintenance.
func TestPruneOfAnother(t *testing.T) {
	parts.Slow(t) // connect needs kopia's program
	t.Parallel()
	repository := initialized(t)
	s := forgetSubject(t, repository)
	id := s.Store(t, uploadertest.ShopVolume())
	p := connect(t, repository)
	p.run(t, "maintenance", "set", "--owner", "jane@laptop")
	for _, apply := range []bool{false, true} {
		_, err := s.Data.(uploader.Pruner).Prune(t.Context(), uploader.PruneRequest{Repository: repository, Apply: apply, Full: true}, nil)
		if !errors.Is(err, uploader.ErrMaintenanceOwner) || !strings.Contains(err.Error(), "jane@laptop") {
			t.Errorf("with another owner: %v", err)
		}
	}
	var m maintenance
	p.decode(t, &m, "maintenance", "info")
	if m.Owner != "jane@laptop" || len(m.Schedule.Runs) > 0 {
		t.Errorf("%+v", m)
	}
	s.Has(t, id)
}

// TestPruneCanceled: a maintenance that was ended does not look as if it still ran.
func TestPruneCanceled(t *testing.T) {
	t.Parallel()
	parts.Slow(t)
	repository := initialized(t)
	s := forgetSubject(t, repository)
	id := s.Store(t, uploadertest.ShopVolume())
	pruner := s.Data.(uploader.Pruner)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	sink := progress.SinkFunc(func(r progress.Reading) {
		if strings.Contains(r.Message, "kopia's maintenance") {
			cancel(stop)
		}
	})
	if _, err := pruner.Prune(ctx, uploader.PruneRequest{Repository: repository, Apply: true, Full: true}, sink); err != nil && !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
	if got, err := pruner.Prune(t.Context(), uploader.PruneRequest{Repository: repository, Apply: true, Full: true}, nil); err != nil || got.Snapshots != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	s.Has(t, id)
}

func TestPruneS3(t *testing.T) {
	parts.Slow(t)
	t.Parallel()
	repository := bucketAddress(t, s3.Start(t))
	s, data := forgetSubject(t, repository), newUploader(t, kopia.Options{})
	s.Data = data
	if err := data.Initialize(t.Context(), repository); err != nil {
		t.Fatal(err)
	}
	left := uploadertest.RunForget(t, s)
	got, err := s.Data.(uploader.Pruner).Prune(t.Context(), uploader.PruneRequest{Repository: repository, Apply: true, Full: true}, nil)
	if err != nil || got.After == nil || got.Snapshots != int64(len(left)) {
		t.Errorf("%+v, %v", got, err)
	}
	s.Has(t, left...)
}
