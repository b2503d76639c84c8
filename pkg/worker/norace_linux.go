//go:build !race

package worker

func raceEnv() []string { return nil }
