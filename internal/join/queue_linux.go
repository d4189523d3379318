package join

import (
	"bytes"
	"slices"
	"sync"
)

// queue sends messages without making anybody wait. A file that changes again before it is sent is sent once, and a
// file of a program is forgotten once: so the queue is bounded by what there is.
type queue struct {
	conn *conn

	mu     sync.Mutex
	list   []message
	closed bool
	some   *sync.Cond
	gone   chan struct{}
}

func newQueue(c *conn) *queue {
	q := &queue{conn: c, gone: make(chan struct{})}
	q.some = sync.NewCond(&q.mu)
	go q.run()
	return q
}

// post takes a message, whose body must not change.
func (q *queue) post(m message) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	if m.kind == kindFile {
		path := m.body[:m.num[0]]
		q.list = slices.DeleteFunc(q.list, func(o message) bool {
			return o.kind == kindFile && bytes.Equal(o.body[:o.num[0]], path)
		})
	}
	q.list = append(q.list, m)
	q.some.Signal()
}

func (q *queue) run() {
	defer close(q.gone)
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for len(q.list) == 0 && !q.closed {
			q.some.Wait()
		}
		if q.closed {
			return
		}
		m := q.list[0]
		q.list = slices.Delete(q.list, 0, 1)
		q.mu.Unlock()
		err := q.conn.send(m)
		q.mu.Lock()
		if err != nil { // the guest is gone
			q.closed = true
		}
	}
}

// close ends the connection, whatever waits.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.some.Signal()
	q.mu.Unlock()
	q.conn.hangUp()
	<-q.gone
	q.conn.close()
}
