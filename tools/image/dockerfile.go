package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// lastStage returns what the last stage of a Dockerfile says of an image besides its files. It knows the instructions
// that ours has there, with one pair for each ENV and LABEL, and refuses all others: so an engine and this program make
// the same image. given are the build arguments; an ARG that is neither given nor has a default is an error.
func lastStage(dockerfile string, given map[string]string) (v1.Config, error) {
	lines := instructions(dockerfile)
	last := len(lines) - 1
	for last >= 0 && !strings.HasPrefix(lines[last], "FROM ") {
		last--
	}
	if last < 0 || lines[last] != "FROM scratch" {
		return v1.Config{}, errors.New("the last stage must be FROM scratch")
	}
	config := v1.Config{Labels: map[string]string{}}
	values := map[string]string{}
	for _, line := range lines[last+1:] {
		if err := apply(&config, values, given, line); err != nil {
			return config, fmt.Errorf("%s: %w", line, err)
		}
	}
	if !slices.Equal(slices.Sorted(maps.Keys(values)), slices.Sorted(maps.Keys(given))) {
		return config, fmt.Errorf("the last stage has arguments %v, given are %v", slices.Sorted(maps.Keys(values)), slices.Sorted(maps.Keys(given)))
	}
	return config, nil
}

// instructions returns the lines of a Dockerfile without comments, with continued lines joined.
func instructions(dockerfile string) []string {
	var lines []string
	for line := range strings.Lines(strings.ReplaceAll(dockerfile, "\\\n", "")) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// apply carries out one instruction. values are those of the arguments so far.
func apply(config *v1.Config, values, given map[string]string, line string) error {
	instruction, text, _ := strings.Cut(line, " ")
	key, value, _ := strings.Cut(text, "=")
	value = os.Expand(strings.Trim(value, `"`), func(name string) string { return values[name] })
	switch instruction {
	case "ARG":
		var ok bool
		if values[key], ok = given[key]; !ok {
			return errors.New("no value is given")
		}
	case "USER":
		config.User = text
	case "ENV":
		config.Env = append(config.Env, key+"="+value)
	case "LABEL":
		config.Labels[key] = value
	case "ENTRYPOINT":
		return json.Unmarshal([]byte(text), &config.Entrypoint)
	case "COPY": // the files are given
	default:
		return errors.New("unknown instruction")
	}
	return nil
}
