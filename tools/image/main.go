// Command image makes the container image of the node agent without a container engine: a docker-archive, which
// `docker load`, `podman load` and `ctr images import` take. `make image` calls it.
//
//	image certificates FILE
//	image archive -root DIR -dockerfile FILE -tag NAME -output TAR [-arch ARCH] [-epoch SECONDS] [-arg NAME=VALUE]...
//
// The files of the image are those below DIR, everything else is what the last stage of the Dockerfile says. The same
// input gives the same bytes, whoever owns the files and whenever they were made.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "certificates":
		return writeCertificates(args[1])
	case len(args) > 0 && args[0] == "archive":
		return archiveCommand(args[1:])
	default:
		return errors.New("usage: image certificates FILE, or image archive FLAGS")
	}
}

// arguments are values for the ARGs of a Dockerfile, as a flag that may be repeated.
type arguments map[string]string

func (a arguments) String() string { return "" }

func (a arguments) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("%q is not NAME=VALUE", text)
	}
	a[name] = value
	return nil
}

func archiveCommand(args []string) error {
	flags := flag.NewFlagSet("image archive", flag.ContinueOnError)
	root := flags.String("root", "", "the folder with the files of the image")
	dockerfile := flags.String("dockerfile", "Dockerfile", "where user, entry point, environment and labels are")
	tag := flags.String("tag", "", "the image's name, with its tag")
	output := flags.String("output", "", "the tar file")
	arch := flags.String("arch", runtime.GOARCH, "the processors that the programs are for")
	epoch := flags.Int64("epoch", 0, "the time of everything in the image, in seconds since 1970")
	values := arguments{}
	flags.Var(values, "arg", "NAME=VALUE of an ARG in the Dockerfile")
	if err := flags.Parse(args); err != nil {
		return err
	}
	text, err := os.ReadFile(*dockerfile)
	if err != nil {
		return err
	}
	config, err := lastStage(string(text), values)
	if err != nil {
		return fmt.Errorf("%s: %w", *dockerfile, err)
	}
	return writeArchive(*output, image{root: *root, tag: *tag, arch: *arch, time: time.Unix(*epoch, 0).UTC(), config: config})
}
