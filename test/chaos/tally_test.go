//go:build chaos

package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// tally counts what the seeds did.
var tally counts

type counts struct {
	mu     sync.Mutex
	struck map[string]int // by the kind of fault
	ends   map[string]int // by operation and phase
}

// strikes counts a fault.
func (c *counts) strikes(kind string) { c.count(&c.struck, kind) }

// ended counts an operation.
func (c *counts) ended(op operation, phase string) { c.count(&c.ends, fmt.Sprintf("%s %s", op, phase)) }

func (c *counts) count(m *map[string]int, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *m == nil {
		*m = map[string]int{}
	}
	(*m)[key]++
}

// String lists the counts in two lines.
func (c *counts) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, m := range []map[string]int{c.struck, c.ends} {
		var all []string
		for _, key := range slices.Sorted(maps.Keys(m)) {
			all = append(all, fmt.Sprintf("%s %d", key, m[key]))
		}
		b.WriteString(strings.Join(all, ", ") + "\n")
	}
	return b.String()
}
