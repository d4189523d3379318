package device

// FindLeaks is what the self-check does once a minute.
func (d *Device) FindLeaks() { d.findLeaks() }
