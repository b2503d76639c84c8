package backupstore

import "time"

// SetStallTimeout changes how long the storage may send nothing.
func (s *Store) SetStallTimeout(d time.Duration) {
	if c, ok := s.bucket.(*cloud); ok {
		c.stall = d
	}
}

// SetOpenTimeout changes how long the storage may take to open an object or to send a page of a list.
func (s *Store) SetOpenTimeout(d time.Duration) {
	if c, ok := s.bucket.(*cloud); ok {
		c.opening = d
	}
}
