package volumeinfo_test

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/plimsoll-io/plimsoll/pkg/volumeinfo"
)

// stored is a list as a later version may write it.
const stored = `[
 {"pvcName": "data", "pvcNamespace": "shop", "pvName": "pvc-1", "restoreMethod": "PodVolumeRestore", "snapshotDataMoved": false,
  "pvrInfo": {"snapshotHandle": "8197", "size": 5, "uploaderType": "kopia", "volumeName": "data", "podName": "web", "podNamespace": "shop", "Phase": ""},
  "novelty": {"of": "later"}},
 {"pvcName": "other", "pvcNamespace": "shop", "restoreMethod": "Teleport", "snapshotDataMoved": false}
]
`

// upTo is the list as it is when it is cut off before a text.
func upTo(text string) string {
	before, _, _ := strings.Cut(stored, text)
	return before
}

func TestDecodeRestore(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		text    string
		claims  string // of what is read
		damaged string // what the error says
	}{
		"of a later version":     {text: stored, claims: "data other"},
		"empty":                  {text: ""},
		"null":                   {text: "null\n"},
		"no volumes":             {text: "[]"},
		"cut off":                {text: upTo("Teleport"), claims: "data", damaged: "unexpected"},
		"cut off after one":      {text: upTo(",\n {"), claims: "data", damaged: "EOF"},
		"an element of nonsense": {text: `[{"pvcName": "a"}, {"pvcName": 1}, {"pvcName": "b"}]`, claims: "a b", damaged: "volume 2"},
		"an object":              {text: "{}", damaged: "begins with {"},
		"no JSON":                {text: "<html>", damaged: "invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, err := volumeinfo.DecodeRestore(strings.NewReader(tc.text))
			var claims []string
			for _, v := range list {
				claims = append(claims, v.Typed.PVCName)
			}
			if got := strings.Join(claims, " "); got != tc.claims {
				t.Errorf("read %q, want %q", got, tc.claims)
			}
			if errors.Is(err, volumeinfo.ErrDamaged) != (tc.damaged != "") || err != nil && !strings.Contains(err.Error(), tc.damaged) {
				t.Errorf("got %v, want a damage that says %q", err, tc.damaged)
			}
		})
	}
}

func TestDecodeKeepsUnknownFields(t *testing.T) {
	t.Parallel()
	list, err := volumeinfo.DecodeRestore(strings.NewReader(stored))
	if err != nil || len(list) != 2 {
		t.Fatal(list, err)
	}
	if novelty, ok := list[0].Content["novelty"].(map[string]any); !ok || novelty["of"] != "later" {
		t.Errorf("content is %v", list[0].Content)
	}
	if list[0].Typed.PodVolume == nil || list[0].Typed.PodVolume.Size != 5 {
		t.Errorf("pod volume is %+v", list[0].Typed.PodVolume)
	}
}

// TestDecodeKeepsNumbers has sizes that a float64 does not hold: of a field that is known, and of one that is not.
func TestDecodeKeepsNumbers(t *testing.T) {
	t.Parallel()
	const text = `[{"pvInfo":{"labels":null},"plimsollNovelty":{"bytes":[9007199254740993,-9223372036854775807,0.1,1e400]},
		"pvrInfo":{"size":9007199254740993},"csiSnapshotInfo":{"size":9223372036854775807}}]`
	list, err := volumeinfo.DecodeRestore(strings.NewReader(text))
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if size := list[0].Typed.PodVolume.Size; size != 9007199254740993 {
		t.Errorf("size is %d", size)
	}
	written, err := json.Marshal(list[0].Content)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"bytes":[9007199254740993,-9223372036854775807,0.1,1e400]`, `{"size":9007199254740993}`, `{"size":9223372036854775807}`} {
		if !strings.Contains(string(written), want) {
			t.Errorf("no %s in %s", want, written)
		}
	}
}

// endless is a list that never ends.
type endless struct{ begun bool }

func (e *endless) Read(p []byte) (int, error) {
	element := `{"pvcName":"` + strings.Repeat("x", 1<<20) + `"},`
	if !e.begun {
		e.begun = true
		element = "["
	}
	return copy(p, element), nil
}

func TestDecodeIsBounded(t *testing.T) {
	t.Parallel()
	if _, err := volumeinfo.DecodeBackup(&endless{}); !errors.Is(err, volumeinfo.ErrDamaged) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(stored)
	f.Add(`[{"csiSnapshotInfo": {"ReadyToUse": null}, "pvInfo": {"labels": {"a": "b"}}}]`)
	f.Add(`[[[`)
	f.Add(`[{"novelty": 9007199254740993, "size": 1e400}]`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, decode := range []func(io.Reader) error{
			func(r io.Reader) error { _, err := volumeinfo.DecodeRestore(r); return err },
			func(r io.Reader) error { _, err := volumeinfo.DecodeBackup(r); return err },
		} {
			if err := decode(strings.NewReader(text)); err != nil && !errors.Is(err, volumeinfo.ErrDamaged) {
				t.Errorf("%q: %v", text, err)
			}
		}
	})
}
