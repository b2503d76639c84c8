package metrics

import "github.com/prometheus/client_golang/prometheus"

// NewRepositories returns a collector that shows for how many repositories volumes wait.
func NewRepositories(unavailable func() int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "plimsoll_repositories_unavailable",
		Help: "Number of repositories that do not open and for which volumes wait.",
	}, func() float64 { return float64(unavailable()) })
}
