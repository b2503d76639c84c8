package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-io/plimsoll/api/v1alpha1"
	"github.com/plimsoll-io/plimsoll/cmd/internal/program"
)

// keepFlags are the flags of a policy.
type keepFlags struct {
	last, hourly, daily, weekly, monthly, yearly int32
	within                                       string
}

// counts are the flags for numbers, in the order in which they are shown.
func (k *keepFlags) counts() []struct {
	name, usage string
	value       *int32
} {
	return []struct {
		name, usage string
		value       *int32
	}{
		{"keep-last", "keep the newest N backups of each volume", &k.last},
		{"keep-hourly", "keep the newest backup of each of the last N hours that have one", &k.hourly},
		{"keep-daily", "keep the newest backup of each of the last N days that have one", &k.daily},
		{"keep-weekly", "keep the newest backup of each of the last N weeks that have one", &k.weekly},
		{"keep-monthly", "keep the newest backup of each of the last N months that have one", &k.monthly},
		{"keep-yearly", "keep the newest backup of each of the last N years that have one", &k.yearly},
	}
}

func (k *keepFlags) addFlags(f *pflag.FlagSet) {
	for _, c := range k.counts() {
		f.Int32Var(c.value, c.name, 0, c.usage)
	}
	f.StringVar(&k.within, "keep-within", "", "keep all backups that are at most so much older than the newest one, such as 48h or 30d")
}

// policy returns the policy, nil without any flag. The error is one of usage.
func (k *keepFlags) policy() (*v1alpha1.RetentionPolicy, error) {
	for _, c := range k.counts() {
		if *c.value < 0 {
			return nil, program.Misused(fmt.Errorf("--%s=%d is negative", c.name, *c.value))
		}
	}
	p := v1alpha1.RetentionPolicy{Last: k.last, Hourly: k.hourly, Daily: k.daily, Weekly: k.weekly, Monthly: k.monthly, Yearly: k.yearly}
	if k.within != "" {
		within, err := parseAge(k.within)
		if err != nil {
			return nil, program.Misused(fmt.Errorf("--keep-within=%s: %w", k.within, err))
		}
		p.Within = &metav1.Duration{Duration: within}
	}
	if p == (v1alpha1.RetentionPolicy{}) {
		return nil, nil
	}
	return &p, nil
}

// parseAge takes a number of days, such as 30d, or a duration of Go.
func parseAge(text string) (time.Duration, error) {
	age, err := time.ParseDuration(text)
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		var n int64
		if n, err = strconv.ParseInt(days, 10, 64); err == nil && n > math.MaxInt64/int64(24*time.Hour) {
			err = errors.New("too many days")
		}
		age = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || age <= 0 {
		return 0, errors.New("is not a time such as 48h or 30d")
	}
	return age, nil
}
