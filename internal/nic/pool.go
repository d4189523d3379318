package nic

import "math/bits"

// A requestPool lends the arrays of requests in flight to those queue pairs that have some: ten thousand
// queue pairs of which few are busy take the memory of few. By log2 of the length.
type requestPool struct {
	free [maxRequestLog2 + 1][][]sendRequest
}

const (
	minRequestLog2 = 3
	maxRequestLog2 = 20 // no queue has more entries
	// Larger arrays than the smallest that lie idle are few, lest a burst's memory stays for ever.
	maxIdleArrays = 32
)

// take returns an array of at least n > 0 requests; their slices' memory may be used again.
func (p *requestPool) take(n int) []sendRequest {
	class := max(minRequestLog2, bits.Len(uint(n-1)))
	if last := len(p.free[class]) - 1; last >= 0 {
		a := p.free[class][last]
		p.free[class][last] = nil
		p.free[class] = p.free[class][:last]
		return a
	}
	return make([]sendRequest, 1<<class)
}

func (p *requestPool) put(a []sendRequest) {
	if len(a) == 0 {
		return
	}
	class := bits.Len(uint(len(a) - 1))
	if class == minRequestLog2 || len(p.free[class]) < maxIdleArrays {
		p.free[class] = append(p.free[class], a)
	}
}

// putRequests gives the memory of requests back when none is in flight.
func (q *QP) putRequests() {
	r := &q.req
	if r.head == r.tail && r.reqs != nil {
		q.nic.transport.requests.put(r.reqs)
		r.reqs = nil
	}
}
