package perf

import "rnic/verbs"

// A postList gathers work requests of one queue pair that are posted with one call, and ring its doorbell once: what leaves together costs
// few system calls.
type postList struct {
	wrs  []*verbs.SendWR
	sges [][]verbs.SGE
	n    int  // gathered
	open bool // others of the same queue pair follow at once
}

func newPostList(most int) (l postList) {
	for range max(1, most) {
		l.wrs = append(l.wrs, new(verbs.SendWR))
		l.sges = append(l.sges, make([]verbs.SGE, 1))
	}
	return l
}

// next is the next work request of the list, to be filled in, and room for its scatter/gather entry. Precondition: the list is not full.
func (l *postList) next() (*verbs.SendWR, []verbs.SGE) {
	l.n++
	return l.wrs[l.n-1], l.sges[l.n-1]
}

func (l *postList) full() bool { return l.n == len(l.wrs) }

// postNow posts what was gathered.
func (l *postList) postNow(q *verbs.QP) error {
	n := l.n
	l.n = 0
	_, err := q.PostSend(l.wrs[:n]...)
	return err
}

// post posts what was gathered, if anything was, and ends the list.
func (l *postList) post(q *verbs.QP) error {
	l.open = false
	if l.n == 0 {
		return nil
	}
	return l.postNow(q)
}
