package nic

// AllocPD makes a protection domain (vol. 1, 11.2.1.5). ENOMEM at the limit.
func (n *NIC) AllocPD() (*PD, error) {
	if n.pds >= n.limits.MaxPD {
		return nil, refuse(ENOMEM, "allocate protection domain", "", "the limit of protection domains is reached: free some")
	}
	n.pds++
	return &PD{nic: n.shared}, nil
}

// Dealloc frees the protection domain. EBUSY while a region, queue pair or address handle is in it
// (11.2.1.6).
func (p *PD) Dealloc() error {
	const op = "deallocate protection domain"
	if p.dead {
		return refuse(ENOENT, op, "", "it is deallocated already")
	}
	if p.refs > 0 {
		return refuse(EBUSY, op, "", "memory regions, queue pairs or address handles are in it: destroy them first")
	}
	p.dead = true
	p.nic.pds--
	return nil
}

// usable tells whether objects of n may be made in p.
func (p *PD) usable(n *NIC) bool { return p != nil && p.nic == n.shared && !p.dead }
