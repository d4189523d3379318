package device

// Remove takes the device from its programs for good, as when a NIC is pulled out of its slot: what OnPortChange has been given is called, and finds it
// Removed; then the contexts that are left are closed, without a flush, and those opened from now on are closed from the beginning.
// The links stay until Close. A second call does nothing.
func (d *Device) Remove() {
	d.mu.Lock()
	again := d.away || d.closed
	d.away = true
	d.mu.Unlock()
	if again {
		return
	}
	d.removed.Store(true)
	d.callHooks()
	d.engine.Drain() // a connection manager's last word, for instance, has left
	d.mu.Lock()
	open := d.openContexts()
	d.mu.Unlock()
	for _, c := range open {
		c.Close()
	}
}
