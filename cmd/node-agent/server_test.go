package main

import "testing"

func TestMemoryShare(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for _, tc := range []struct {
		limit int64
		slots int
		want  int64
	}{
		{0, 4, 0},
		{2048 * mib, 1, 1856 * mib},
		{2048 * mib, 4, 464 * mib},
		{256 * mib, 4, 128 * mib},
	} {
		if got := memoryShare(tc.limit, tc.slots); got != tc.want {
			t.Errorf("%d bytes for %d volumes: %d, want %d", tc.limit, tc.slots, got, tc.want)
		}
	}
}
