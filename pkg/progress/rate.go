package progress

import "time"

const (
	bucketWidth = time.Second
	rateWindow  = 2 * time.Minute
	// minBuckets are kept beyond the window: on a slow link, where bytes show up once in many seconds, two minutes hold too
	// few of them to tell a rate.
	minBuckets = 20
	// maxBuckets is what the window holds at most, and so bounds the memory of an operation.
	maxBuckets = int(rateWindow/bucketWidth) + 1

	minETASpan   = 10 * time.Second // a rate over less says nothing about the future
	maxETA       = 100 * 24 * time.Hour
	steadyFactor = 3 // the two halves of the window may differ by this much for a rate to be steady
)

type bucket struct {
	start time.Time
	bytes int64
}

// rateEstimator tells how many bytes a second moved lately. Only movements are recorded, so that silence lowers the rate
// gradually. Not safe for concurrent use.
type rateEstimator struct {
	buckets []bucket
}

// record adds bytes that have moved since the reading before. They belong to the bucket that was open meanwhile.
func (e *rateEstimator) record(since, now time.Time, bytes int64) {
	if len(e.buckets) == 0 {
		e.buckets = append(e.buckets, bucket{start: since})
	}
	open := &e.buckets[len(e.buckets)-1]
	open.bytes += bytes
	if now.Sub(open.start) >= bucketWidth {
		e.trim(now)
		e.buckets = append(e.buckets, bucket{start: now})
	}
}

func (e *rateEstimator) trim(now time.Time) {
	drop := 0
	for left := len(e.buckets); left >= maxBuckets || (left >= minBuckets && now.Sub(e.buckets[drop].start) > rateWindow); left-- {
		drop++
	}
	e.buckets = append(e.buckets[:0], e.buckets[drop:]...)
}

// rate returns bytes per second, 0 while nothing can be said.
func (e *rateEstimator) rate(now time.Time) float64 {
	if len(e.buckets) == 0 {
		return 0
	}
	return perSecond(e.buckets, now.Sub(e.buckets[0].start))
}

// steady reports whether the window is long enough and even enough to foretell anything.
func (e *rateEstimator) steady(now time.Time) bool {
	if len(e.buckets) < 4 || now.Sub(e.buckets[0].start) < minETASpan {
		return false
	}
	first := e.buckets[0].start
	middle := first.Add(now.Sub(first) / 2)
	split := 1
	for split < len(e.buckets) && e.buckets[split].start.Before(middle) {
		split++
	}
	older, newer := perSecond(e.buckets[:split], middle.Sub(first)), perSecond(e.buckets[split:], now.Sub(middle))
	return older > 0 && newer > 0 && older < newer*steadyFactor && newer < older*steadyFactor
}

func perSecond(buckets []bucket, span time.Duration) float64 {
	if span <= 0 {
		return 0
	}
	var sum int64
	for _, b := range buckets {
		sum += b.bytes
	}
	return float64(sum) / span.Seconds()
}

// eta returns how long the remaining bytes take at this rate, and false where that is not known.
func eta(remaining int64, bytesPerSecond float64) (time.Duration, bool) {
	if remaining < 0 || bytesPerSecond <= 0 {
		return 0, false
	}
	seconds := float64(remaining) / bytesPerSecond
	if seconds > maxETA.Seconds() {
		return 0, false
	}
	return time.Duration(seconds * float64(time.Second)), true
}
