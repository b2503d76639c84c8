package metrics

import "github.com/prometheus/client_golang/prometheus"

// NewCaches returns a collector that shows how large the caches of the node's repositories are.
func NewCaches(size func() int64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "plimsoll_cache_size_bytes",
		Help: "Bytes that the caches of all repositories have on the node's disk, without what running volumes have added.",
	}, func() float64 { return float64(size()) })
}
