package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
)

// maxSample is that of the CRD.
const maxSample = 50

// samplePercent returns the percentage that --sample asks for; 0: all is read. The error is one of usage.
func (o *newTask) samplePercent() (int32, error) {
	if o.sample == "" {
		return 0, nil
	}
	if o.restore.class != "" {
		return 0, program.Misused(errors.New("--sample cannot be combined with --restore-to"))
	}
	number, isPercent := strings.CutSuffix(o.sample, "%")
	percent, err := strconv.ParseInt(number, 10, 32)
	if err != nil || !isPercent || percent < 1 || percent > maxSample {
		return 0, program.Misused(fmt.Errorf("--sample=%s is not a whole percentage from 1%% to %d%%, such as 5%%", o.sample, maxSample))
	}
	return int32(percent), nil
}
