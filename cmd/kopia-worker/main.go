// Command kopia-worker backs up and restores one volume with the kopia library, for the node agent, which starts it. It is a
// program of its own so that the node agent does not carry the library along.
package main

import (
	"fmt"
	"os"

	"github.com/plimsoll-io/plimsoll/pkg/uploader/kopia/kopiaworker"
)

func main() {
	kopiaworker.Main()
	fmt.Fprintln(os.Stderr, "This is a part of the node agent and cannot be run by hand.")
	os.Exit(2)
}
