package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/plimsoll-io/plimsoll/pkg/worker"
)

func Example() {
	// In a program this is the first line of main, in a test package of TestMain.
	worker.Main()

	volume, err := os.Open(os.TempDir())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer volume.Close()
	err = worker.Run(context.Background(), worker.Command{
		Path:   "/bin/sh",
		Args:   []string{"-c", "echo $GREETING; echo 'Fatal: no repository' >&2; exit 10"},
		Env:    []string{"GREETING=hello"},
		Dir:    volume,
		Stdout: func(line []byte) { fmt.Printf("line: %s\n", line) },
		Logger: slog.New(slog.DiscardHandler),
	})
	fmt.Println(err)
	// Output:
	// line: hello
	// sh: exit code 10: Fatal: no repository
}
