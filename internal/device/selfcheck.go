package device

// Health is what the device has found wrong with itself since it was made.
type Health struct {
	Replaced uint64 // processing units that died of an internal error: their queue pairs went to the error state
}

// Health reads it.
func (d *Device) Health() (h Health) {
	h.Replaced = d.engine.Replaced()
	return h
}
