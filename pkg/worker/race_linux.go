//go:build race

package worker

// raceEnv returns what a worker needs that has the race detector, which lets a process sleep a second before it exits.
func raceEnv() []string { return []string{"GORACE=atexit_sleep_ms=0"} }
