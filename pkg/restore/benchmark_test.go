package restore

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// BenchmarkRestore restores 10,000 ConfigMaps of half a kilobyte into one namespace.
func BenchmarkRestore(b *testing.B) {
	const items = 10_000
	for b.Loop() {
		b.StopTimer()
		a := newAttempt(b)
		a.input.Log = slog.New(slog.DiscardHandler)
		files := make([]archived, 0, items)
		for i := range items {
			files = append(files, configMap(a.id, fmt.Sprintf("c%05d", i), strings.Repeat("0123456789abcdef", 16)))
		}
		a.backup(files...)
		e := a.engine()
		b.StartTimer()
		outcome, err := a.collect(e).RestoreItems(b.Context(), func(Progress) {})
		if err != nil || outcome.Progress.Counts.Created != items+1 {
			b.Fatalf("%+v, %v", outcome.Progress, err)
		}
	}
	b.ReportMetric(items*float64(b.N)/b.Elapsed().Seconds(), "items/s")
}
