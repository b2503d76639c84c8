package backupstore

import "time"

// SetStallTimeout changes how long the storage may send nothing.
func (s *Store) SetStallTimeout(d time.Duration) {
	if c, ok := s.bucket.(*cloud); ok {
		c.stall = d
	}
}
