package nic

import "fmt"

// CreateAH makes an address handle, a destination of UD work requests (vol. 1, 11.2.2.1). EINVAL: a
// destination that cannot be reached from the source GID. ENOMEM: the limit.
func (n *NIC) CreateAH(pd *PD, a AHAttr) (*AH, error) {
	const op = "create address handle"
	if !pd.usable(n) {
		return nil, refuse(EINVAL, op, "", "no such protection domain")
	}
	if len(n.ahs) >= n.limits.MaxAH {
		return nil, refuse(ENOMEM, op, "", "the limit of address handles is reached: destroy some")
	}
	path, local, err := n.resolve(op, "", &a)
	if err != nil {
		return nil, err
	}
	h := &AH{nic: n.shared, pd: pd, num: n.newAHNum(), attr: a, path: path, local: local, multicast: path.Dst.IsMulticast()}
	h.path.SrcPort = sourcePort(a.FlowLabel, h.num, 0)
	n.ahs[h.num] = h
	pd.refs++
	return h, nil
}

// Destroy frees the address handle. Work requests that still name it fail.
func (a *AH) Destroy() error {
	if a.dead {
		return refuse(ENOENT, "destroy address handle", fmt.Sprint(a.num), "it is destroyed already")
	}
	a.dead = true
	a.pd.refs--
	delete(a.nic.ahs, a.num)
	return nil
}
