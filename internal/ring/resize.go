package ring

// A queue is resized by moving what waits in it into a new one, while the program keeps its hands off the
// old one: it holds the lock of its side until the command has been answered.

// MoveReceives moves what the producer has published and this side has not consumed into to, which is
// empty and another NIC side's view. ErrFull, and nothing is changed, if it does not hold them.
// Precondition: the elements have the same size.
func (q *Queue) MoveReceives(to *Queue) (err error) {
	defer guard(&err)
	n := (q.load(offProducer) - q.index) & q.mask
	return q.move(to, q.index, n, func() {
		to.index = 0
		store32(to.buf[offProducer:], n)
	})
}

// MoveCompletions moves what this side has published and the consumer has not consumed into to, which is
// empty; see MoveReceives.
func (q *Queue) MoveCompletions(to *Queue) (err error) {
	defer guard(&err)
	from := q.load(offConsumer) & q.mask
	n := (q.index - from) & q.mask
	return q.move(to, from, n, func() {
		to.index = n
		store32(to.buf[offProducer:], n)
	})
}

// move copies n elements and lets publish say that they are there: data before index.
func (q *Queue) move(to *Queue, from, n uint32, publish func()) error {
	if n > to.Capacity() {
		return ErrFull
	}
	for i := range n {
		copy(to.elem(i), q.elem(from+i))
	}
	publish()
	return nil
}
