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
	v1alpha1.RetentionPolicy // but for Within
	within                   string
}

func (k *keepFlags) addFlags(f *pflag.FlagSet) {
	f.Int32Var(&k.Last, "keep-last", 0, "keep the newest N backups of each volume")
	f.Int32Var(&k.Hourly, "keep-hourly", 0, "keep the newest backup of each of the last N hours that have one")
	f.Int32Var(&k.Daily, "keep-daily", 0, "keep the newest backup of each of the last N days that have one")
	f.Int32Var(&k.Weekly, "keep-weekly", 0, "keep the newest backup of each of the last N weeks that have one")
	f.Int32Var(&k.Monthly, "keep-monthly", 0, "keep the newest backup of each of the last N months that have one")
	f.Int32Var(&k.Yearly, "keep-yearly", 0, "keep the newest backup of each of the last N years that have one")
	f.StringVar(&k.within, "keep-within", "", "keep all backups that are at most so much older than the newest one, such as 48h or 30d")
}

// policy returns the policy, nil without any flag. The error is one of usage.
func (k *keepFlags) policy() (*v1alpha1.RetentionPolicy, error) {
	p := k.RetentionPolicy
	if smallest := min(p.Last, p.Hourly, p.Daily, p.Weekly, p.Monthly, p.Yearly); smallest < 0 {
		return nil, program.Misused(fmt.Errorf("one of the --keep flags is negative: %d", smallest))
	}
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

// args returns the flags as a command line has them.
func (k *keepFlags) args() []string {
	var args []string
	for _, keep := range []struct {
		name  string
		count int32
	}{
		{"last", k.Last}, {"hourly", k.Hourly}, {"daily", k.Daily}, {"weekly", k.Weekly}, {"monthly", k.Monthly}, {"yearly", k.Yearly},
	} {
		if keep.count > 0 {
			args = append(args, fmt.Sprintf("--keep-%s=%d", keep.name, keep.count))
		}
	}
	if k.within != "" {
		args = append(args, "--keep-within="+k.within)
	}
	return args
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
