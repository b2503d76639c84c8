// Command worker-exec confines itself and becomes restic or kopia-worker, for the node agent and the restore controller, which start it. They
// can do the same themselves; this program takes a quarter of the processor time to start.
package main

import (
	"fmt"
	"os"

	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

func main() {
	worker.Main()
	fmt.Fprintln(os.Stderr, "This is a part of the node agent and cannot be run by hand. If an agent has started it, the two are of different versions: take both from one image.")
	os.Exit(2)
}
