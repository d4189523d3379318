package sim

// event is something that happens at a time: a packet arrives at host, or fn runs.
type event struct {
	at   int64
	seq  uint64 // events of one time happen in the order in which they were made
	fn   func()
	host *host
	pkt  *packet
}

// eventHeap is a binary heap of events, earliest first.
type eventHeap struct {
	seq uint64
	e   []event
}

func (h *eventHeap) len() int { return len(h.e) }

func (h *eventHeap) less(i, j int) bool {
	a, b := &h.e[i], &h.e[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (h *eventHeap) push(e event) {
	h.seq++
	e.seq = h.seq
	h.e = append(h.e, e)
	for i := len(h.e) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			return
		}
		h.e[i], h.e[up] = h.e[up], h.e[i]
		i = up
	}
}

func (h *eventHeap) pop() event {
	top := h.e[0]
	last := len(h.e) - 1
	h.e[0] = h.e[last]
	h.e[last] = event{}
	h.e = h.e[:last]
	for i := 0; ; {
		small := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if h.less(c, small) {
				small = c
			}
		}
		if small == i {
			return top
		}
		h.e[i], h.e[small] = h.e[small], h.e[i]
		i = small
	}
}
