package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Restored pods compare with volumes that they make again, so each app must make the same files each time.
func TestVerify(t *testing.T) {
	t.Parallel()
	for _, a := range apps() {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, v := range a.volumes {
				if err := os.Mkdir(filepath.Join(dir, v.name), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := a.make(dir, minBytes); err != nil {
				t.Fatal(err)
			}
			if v, err := a.verify(dir, t.TempDir(), minBytes); err != nil || v.Differences > 0 {
				t.Errorf("got %+v, %v; want no differences", v, err)
			}
			for _, v := range a.volumes {
				if err := os.WriteFile(filepath.Join(dir, v.name, "more"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			v, err := a.verify(dir, t.TempDir(), minBytes)
			if err != nil || v.Differences != len(a.volumes) || !strings.Contains(v.Listed[0], `"more" should not be there`) {
				t.Errorf("got %+v, %v; want the file in each volume", v, err)
			}
		})
	}
}

func TestVerdictIsShort(t *testing.T) {
	t.Parallel()
	var v verdict
	for range 2 {
		v.add(app{name: "pod"}, volume{name: "volume"}, []string{strings.Repeat("n", 1000), "2", "3", "4", "5", "6"})
	}
	if v.Differences != 12 || len(v.Listed) != maxDifferences || len(v.Listed[0]) != maxDifference {
		t.Errorf("got %+v", v)
	}
}
