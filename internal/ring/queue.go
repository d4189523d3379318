// Package ring is the layout of the queues that a program shares with the NIC, and the rules for
// their indices: struct rxe_queue_buf and the elements of rdma_user_rxe.h (Linux UAPI), as the
// stock rxe provider of rdma-core and the Go package verbs use them. It is pure: everything works
// on byte slices.
//
// A queue is untrusted from the NIC's side: the program can write any byte of it at any time. So
// the NIC keeps its own mask, element size and own index, reads the other side's index once per
// use and masks it, and copies an element before it looks at it.
package ring

import (
	"errors"
	"fmt"
	"math/bits"
)

// HeaderSize is the size of struct rxe_queue_buf in front of the elements.
const HeaderSize = 384

// Offsets in struct rxe_queue_buf. The indices stand in cache lines of their own.
const (
	offLog2Elem = 0
	offMask     = 4
	offProducer = 128
	offConsumer = 256
)

// MaxEntries bounds the slots of one queue.
const MaxEntries = 1 << 20

var (
	// ErrFull says that a queue has no free slot.
	ErrFull = errors.New("ring: queue is full")
	// ErrFault says that the memory below the queue is gone: the program truncated its file.
	ErrFault = errors.New("ring: queue memory is gone")
)

// Geometry is the shape of a queue.
type Geometry struct {
	Slots    uint32 // a power of two; Slots-1 elements fit
	ElemLog2 uint8  // log2 of the element size in bytes
}

// GeometryFor returns the shape that holds at least entries elements of elemSize bytes each. The
// element size is rounded up to a power of two, 64 at least, as the kernel's rxe does.
func GeometryFor(entries, elemSize uint32) (Geometry, error) {
	if entries == 0 {
		entries = 1
	}
	if entries >= MaxEntries || elemSize == 0 || elemSize > 1<<16 {
		return Geometry{}, fmt.Errorf("ring: %d entries of %d bytes are out of range", entries, elemSize)
	}
	g := Geometry{Slots: 1 << bits.Len32(entries), ElemLog2: 6}
	for 1<<g.ElemLog2 < elemSize {
		g.ElemLog2++
	}
	return g, nil
}

// Size is the number of bytes of a queue, its header included.
func (g Geometry) Size() int { return HeaderSize + int(g.Slots)<<g.ElemLog2 }

// Capacity is the number of elements that fit: one slot stays free to tell full from empty.
func (g Geometry) Capacity() uint32 { return g.Slots - 1 }

// Queue is one side's view of a queue. It is not safe for concurrent use by itself: the producer
// side and the consumer side each have their own Queue over the same bytes.
type Queue struct {
	buf   []byte
	elems []byte
	mask  uint32
	shift uint8
	index uint32 // own index, trusted

	onRead func() // tests only
}

// OnRead has f called before each read of what the other side can write, which f may change: tests only.
func (q *Queue) OnRead(f func()) { q.onRead = f }

func (q *Queue) reads() {
	if q.onRead != nil {
		q.onRead()
	}
}

// load reads an index that the other side writes.
func (q *Queue) load(off int) uint32 {
	q.reads()
	return load32(q.buf[off:])
}

// Format writes an empty queue's header into buf and returns a view of it. len(buf) must be at
// least g.Size(); the elements are cleared.
func Format(buf []byte, g Geometry) (*Queue, error) {
	if len(buf) < g.Size() {
		return nil, fmt.Errorf("ring: %d bytes for a queue of %d", len(buf), g.Size())
	}
	if !aligned8(buf) {
		return nil, errors.New("ring: queue is not aligned to 8 bytes")
	}
	clear(buf[:g.Size()])
	store32(buf[offLog2Elem:], uint32(g.ElemLog2))
	store32(buf[offMask:], g.Slots-1)
	return View(buf, g), nil
}

// View returns another view of a queue that Format prepared. Preconditions: as Format's.
func View(buf []byte, g Geometry) *Queue {
	return &Queue{buf: buf[:g.Size()], elems: buf[HeaderSize:g.Size()], mask: g.Slots - 1, shift: g.ElemLog2}
}

// Capacity is the number of elements that fit.
func (q *Queue) Capacity() uint32 { return q.mask }

// ElemSize is the size of an element in bytes.
func (q *Queue) ElemSize() int { return 1 << q.shift }

// Bytes is the whole queue.
func (q *Queue) Bytes() []byte { return q.buf }

// elem returns slot i, masked: never out of range, whatever i is.
func (q *Queue) elem(i uint32) []byte {
	o := int(i&q.mask) << q.shift
	return q.elems[o : o+1<<q.shift : o+1<<q.shift]
}

// guard turns a memory fault of the calling function into ErrFault. The goroutine must have
// called debug.SetPanicOnFault(true), else the fault ends the process.
func guard(err *error) {
	if r := recover(); r != nil {
		if _, ok := r.(interface{ Addr() uintptr }); !ok {
			panic(r)
		}
		*err = ErrFault
	}
}

// ---- Consumer side: send and receive queues in the NIC, completion queues in the program.

// Pending is the number of elements that the producer has published and this side has not
// consumed, at most Capacity. A fault counts as none.
func (q *Queue) Pending() (n uint32) {
	var err error
	defer guard(&err)
	return (q.load(offProducer) - q.index) & q.mask
}

// PendingFrom is Pending, counted from a private position ahead of the consumer index.
func (q *Queue) PendingFrom(pos uint32) (n uint32) {
	var err error
	defer guard(&err)
	return (q.load(offProducer) - pos) & q.mask
}

// Produced is the producer's index as it stands in the queue: where a new producer goes on.
func (q *Queue) Produced() (i uint32) {
	var err error
	defer guard(&err)
	return q.load(offProducer) & q.mask
}

// Position is this side's own index.
func (q *Queue) Position() uint32 { return q.index }

// SetPosition moves this side's own index without publishing it.
func (q *Queue) SetPosition(i uint32) { q.index = i & q.mask }

// Next is the index behind i.
func (q *Queue) Next(i uint32) uint32 { return (i + 1) & q.mask }

// Consume publishes that one more element has been consumed.
func (q *Queue) Consume() (err error) {
	defer guard(&err)
	q.index = (q.index + 1) & q.mask
	store32(q.buf[offConsumer:], q.index)
	return nil
}

// ConsumeAll drops every published element, as a reset does.
func (q *Queue) ConsumeAll() (err error) {
	defer guard(&err)
	q.index = q.load(offProducer) & q.mask
	store32(q.buf[offConsumer:], q.index)
	return nil
}

// Shut makes the queue look full to its producer, until Reopen: the one way to refuse what is produced without a
// call. What has been published stays.
func (q *Queue) Shut() (err error) {
	defer guard(&err)
	store32(q.buf[offConsumer:], (q.load(offProducer)+1)&q.mask)
	return nil
}

// Reopen undoes Shut.
func (q *Queue) Reopen() (err error) {
	defer guard(&err)
	store32(q.buf[offConsumer:], q.index)
	return nil
}

// ---- Producer side: completion queues in the NIC, send and receive queues in the program.

// Free is the number of elements that can be produced now.
func (q *Queue) Free() (n uint32) {
	var err error
	defer guard(&err)
	// A consumer that is one past the producer (rdma-core 34 to 54 leave it so) looks like full
	// for a moment; it corrects itself at the next poll.
	return (q.load(offConsumer) - q.index - 1) & q.mask
}

// Publish makes the element at Position visible to the consumer: data before index.
func (q *Queue) Publish() (err error) {
	defer guard(&err)
	q.index = (q.index + 1) & q.mask
	store32(q.buf[offProducer:], q.index)
	return nil
}
