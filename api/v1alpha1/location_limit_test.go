package v1alpha1

import (
	"strings"
	"testing"
)

// TestLocationLimitOf reads the limits of a location. What is not kept is said.
func TestLocationLimitOf(t *testing.T) {
	t.Parallel()
	const noNumber, noQuantity = AnnotationMaxOperations + ` is "many", which is no positive number`, "which is no positive quantity"
	const alone, tooLittle = "limits each volume, and not all of them together", "less than 1 KiB a second"
	for name, test := range map[string]struct {
		operations, bytes string // empty: no annotation
		want              LocationLimit
		problems          []string
	}{
		"none":                    {},
		"operations":              {operations: "20", want: LocationLimit{Operations: 20}},
		"both":                    {operations: "20", bytes: "200Mi", want: LocationLimit{Operations: 20, BytesPerSecond: 10 << 20}},
		"whole KiB, rounded down": {operations: "3", bytes: "10k", want: LocationLimit{Operations: 3, BytesPerSecond: 3 << 10}},
		"all that there is":       {operations: "1", bytes: "9E", want: LocationLimit{Operations: 1, BytesPerSecond: 9e18 / 1024 * 1024}},
		"no number":               {operations: "many", want: LocationLimit{}, problems: []string{noNumber}},
		"none may move":           {operations: "0", problems: []string{"no positive number"}},
		"bytes alone":             {bytes: "1Mi", want: LocationLimit{BytesPerSecond: 1 << 20}, problems: []string{alone}},
		"bytes and no number":     {operations: "many", bytes: "1Mi", want: LocationLimit{BytesPerSecond: 1 << 20}, problems: []string{noNumber, alone}},
		"no quantity":             {operations: "20", bytes: "200 MB/s", want: LocationLimit{Operations: 20}, problems: []string{noQuantity}},
		"nothing":                 {operations: "20", bytes: "0", want: LocationLimit{Operations: 20}, problems: []string{noQuantity}},
		"negative":                {operations: "20", bytes: "-1Mi", want: LocationLimit{Operations: 20}, problems: []string{noQuantity}},
		"thousandths":             {operations: "20", bytes: "200m", want: LocationLimit{Operations: 20}, problems: []string{tooLittle}},
		"without a unit":          {operations: "20", bytes: "200", want: LocationLimit{Operations: 20}, problems: []string{tooLittle}},
		"neither":                 {operations: "many", bytes: "much", problems: []string{noNumber, noQuantity}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			annotations := map[string]string{}
			if test.operations != "" {
				annotations[AnnotationMaxOperations] = test.operations
			}
			if test.bytes != "" {
				annotations[AnnotationMaxBytesPerSecond] = test.bytes
			}
			got, problems := LocationLimitOf(annotations)
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
			if len(problems) != len(test.problems) {
				t.Fatalf("got the problems %q, want %q", problems, test.problems)
			}
			for i, want := range test.problems {
				if !strings.Contains(problems[i], want) {
					t.Errorf("got the problem %q, want %q", problems[i], want)
				}
			}
		})
	}
}
