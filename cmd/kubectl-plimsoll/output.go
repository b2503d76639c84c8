package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
)

// The formats of --output.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

var formats = []string{formatTable, formatJSON, formatYAML}

// output says in which format a command prints.
type output struct{ format string }

func (o *output) addFlag(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", formatTable, "output format: table, json or yaml")
	// The flag exists, so this cannot fail.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
}

func (o *output) validate() error {
	if !slices.Contains(formats, o.format) {
		return program.Misused(fmt.Errorf("--output=%s is not table, json or yaml", o.format))
	}
	return nil
}

// print writes a value as JSON or YAML, or lets table write it.
func (o *output) print(w io.Writer, value any, table func(io.Writer) error) error {
	if o.format == formatTable {
		return table(w)
	}
	text, err := o.encode(value)
	if err != nil {
		return fmt.Errorf("write %s: %w", o.format, err)
	}
	_, err = w.Write(text)
	return err
}

// encode escapes control characters and invisible characters. The YAML library knows no escapes for some of
// them: a value with such is written as JSON, which is YAML, too.
func (o *output) encode(value any) ([]byte, error) {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return nil, err
	}
	if o.format == formatYAML {
		plain, err := yaml.JSONToYAML(text)
		if err == nil && !bytes.ContainsFunc(plain, hidden) {
			return plain, nil
		}
	}
	var visible []byte
	for _, r := range string(text) { // strings alone can have such characters
		switch {
		case !hidden(r):
			visible = utf8.AppendRune(visible, r)
		case r <= 0xffff:
			visible = fmt.Appendf(visible, `\u%04x`, r)
		case o.format == formatYAML: // which knows no surrogates
			visible = fmt.Appendf(visible, `\U%08x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			visible = fmt.Appendf(visible, `\u%04x\u%04x`, high, low)
		}
	}
	return append(visible, '\n'), nil
}

func hidden(r rune) bool { return r != '\n' && !strconv.IsGraphic(r) }
