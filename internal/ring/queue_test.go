package ring

import (
	"encoding/binary"
	"runtime"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// geometry is the shape of q.
func geometry(q *Queue) Geometry { return Geometry{Slots: q.mask + 1, ElemLog2: q.shift} }

// other is the view of the other side.
func other(q *Queue) *Queue { return View(q.Bytes(), geometry(q)) }

// As the kernel's rxe_queue_init: one more slot than elements, rounded up to a power of two, and
// elements of a power of two bytes, 64 at least.
func TestGeometry(t *testing.T) {
	for _, c := range []struct {
		entries, size uint32
		want          Geometry
	}{
		{0, 40, Geometry{2, 6}},
		{1, 64, Geometry{2, 6}},
		{2, 65, Geometry{4, 7}},
		{3, 224, Geometry{4, 8}},
		{4, 256, Geometry{8, 8}},
		{500, 56, Geometry{512, 6}},
		{511, 720, Geometry{512, 10}},
		{512, 1 << 16, Geometry{1024, 16}},
		{MaxEntries - 1, 1, Geometry{MaxEntries, 6}},
	} {
		g, err := GeometryFor(c.entries, c.size)
		if err != nil || g != c.want {
			t.Errorf("%d entries of %d bytes: got %+v, %v, want %+v", c.entries, c.size, g, err, c.want)
		}
		if g.Capacity() < c.entries || g.Size() != HeaderSize+int(g.Slots)*(1<<g.ElemLog2) {
			t.Errorf("%d entries of %d bytes: capacity %d, size %d", c.entries, c.size, g.Capacity(), g.Size())
		}
	}
	for _, c := range [][2]uint32{{MaxEntries, 64}, {1<<32 - 1, 64}, {1, 0}, {1, 1<<16 + 1}, {1, 1<<32 - 1}} {
		if g, err := GeometryFor(c[0], c[1]); err == nil {
			t.Errorf("%d entries of %d bytes: got %+v, want an error", c[0], c[1], g)
		}
	}
}

func TestFormat(t *testing.T) {
	g := Geometry{Slots: 4, ElemLog2: 6}
	buf := make([]byte, g.Size()+8)
	for i := range buf {
		buf[i] = 0xff
	}
	q, err := Format(buf, g)
	if err != nil {
		t.Fatal(err)
	}
	header := func(off int) uint32 { return binary.LittleEndian.Uint32(buf[off:]) }
	if header(0) != 6 || header(4) != 3 || header(128) != 0 || header(256) != 0 {
		t.Errorf("header % x", buf[:HeaderSize])
	}
	for i := HeaderSize; i < g.Size(); i++ {
		if buf[i] != 0 {
			t.Fatalf("byte %d is not cleared", i)
		}
	}
	if buf[g.Size()] != 0xff || len(q.Bytes()) != g.Size() {
		t.Error("bytes behind the queue were touched")
	}
	if q.Capacity() != 3 || q.ElemSize() != 64 || q.Pending() != 0 || q.Free() != 3 {
		t.Errorf("capacity %d, elements of %d, %d pending, %d free", q.Capacity(), q.ElemSize(), q.Pending(), q.Free())
	}
	if _, err := Format(buf[:g.Size()-1], g); err == nil {
		t.Error("a buffer that is too short was taken")
	}
	if _, err := Format(buf[1:], g); err == nil {
		t.Error("a buffer that is not aligned was taken")
	}
}

// Whatever the two sides do in turn, the consumer sees what was produced, in order, once.
func TestProducerAndConsumer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, err := GeometryFor(rapid.Uint32Range(1, 9).Draw(t, "entries"), 64)
		if err != nil {
			t.Fatal(err)
		}
		producer, err := Format(make([]byte, g.Size()), g)
		if err != nil {
			t.Fatal(err)
		}
		consumer := other(producer)
		var model []uint64
		next := uint64(0)
		read := func(pos uint32) uint64 {
			var c CQE
			consumer.LoadCQE(pos, &c)
			return c.WRID
		}
		t.Repeat(map[string]func(*rapid.T){
			"produce": func(t *rapid.T) {
				if producer.Free() == 0 {
					return
				}
				if err := producer.StoreCQE(producer.Position(), &CQE{WRID: next}); err != nil {
					t.Fatal(err)
				}
				if consumer.Pending() != uint32(len(model)) {
					t.Fatalf("visible before it was published")
				}
				if err := producer.Publish(); err != nil {
					t.Fatal(err)
				}
				model = append(model, next)
				next++
			},
			"consume": func(t *rapid.T) {
				if len(model) == 0 {
					return
				}
				if got := read(consumer.Position()); got != model[0] {
					t.Fatalf("got element %d, want %d", got, model[0])
				}
				if err := consumer.Consume(); err != nil {
					t.Fatal(err)
				}
				model = model[1:]
			},
			"read ahead": func(t *rapid.T) {
				pos := consumer.Position()
				for i, want := range model {
					if n := consumer.PendingFrom(pos); n != uint32(len(model)-i) {
						t.Fatalf("%d pending from element %d of %d", n, i, len(model))
					}
					if got := read(pos); got != want {
						t.Fatalf("got element %d, want %d", got, want)
					}
					pos = consumer.Next(pos)
				}
				if consumer.PendingFrom(pos) != 0 {
					t.Fatal("pending behind the last one")
				}
			},
			"fetch, then go back": func(t *rapid.T) {
				at := consumer.Position()
				consumer.SetPosition(at + uint32(len(model)))
				if consumer.Pending() != 0 || producer.Free() != producer.Capacity()-uint32(len(model)) {
					t.Fatal("a private position was seen by the other side")
				}
				consumer.SetPosition(at)
			},
			"drop all": func(t *rapid.T) {
				if err := consumer.ConsumeAll(); err != nil {
					t.Fatal(err)
				}
				model = nil
			},
			"": func(t *rapid.T) {
				if n := consumer.Pending(); n != uint32(len(model)) {
					t.Fatalf("%d pending, want %d", n, len(model))
				}
				if n := producer.Free(); n != producer.Capacity()-uint32(len(model)) {
					t.Fatalf("%d free, want %d", n, producer.Capacity()-uint32(len(model)))
				}
			},
		})
	})
}

// Data before index: a consumer on another core reads what was written before the publication. Run
// it with -race.
func TestConcurrentSides(t *testing.T) {
	const elements = 20000
	producer := queueOf(t, 7, CQESize)
	consumer := other(producer)
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := uint64(0); i < elements; {
			if producer.Free() == 0 {
				runtime.Gosched()
				continue
			}
			_ = producer.StoreCQE(producer.Position(), &CQE{WRID: i, ByteLen: uint32(i)})
			_ = producer.Publish()
			i++
		}
	})
	for i := uint64(0); i < elements; {
		if consumer.Pending() == 0 {
			runtime.Gosched()
			continue
		}
		var c CQE
		if consumer.LoadCQE(consumer.Position(), &c); c.WRID != i || c.ByteLen != uint32(i) {
			t.Errorf("got element %+v, want number %d", c, i)
			break
		}
		_ = consumer.Consume()
		i++
	}
	_ = consumer.ConsumeAll()
	if t.Failed() {
		t.Skip("skipped the rest: the sides are out of step")
	}
	wg.Wait()
}

// The other side of a queue is a program that may write anything: counts stay within the capacity,
// positions within the slots, and the NIC's own mask and index count, not the header's.
func TestHostileIndices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g, err := GeometryFor(rapid.Uint32Range(1, 40).Draw(t, "entries"), RecvWQESize)
		if err != nil {
			t.Fatal(err)
		}
		q, err := Format(make([]byte, g.Size()), g)
		if err != nil {
			t.Fatal(err)
		}
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			for _, off := range []int{offLog2Elem, offMask, offProducer, offConsumer} {
				binary.LittleEndian.PutUint32(q.Bytes()[off:], rapid.Uint32().Draw(t, "value"))
			}
			pos := rapid.Uint32().Draw(t, "position")
			if q.Pending() > q.Capacity() || q.PendingFrom(pos) > q.Capacity() || q.Free() > q.Capacity() {
				t.Fatalf("%d pending, %d pending from %#x, %d free of %d", q.Pending(), q.PendingFrom(pos), pos, q.Free(), q.Capacity())
			}
			var r RecvWQE
			if _, err := q.LoadRecv(pos, &r); err != nil {
				t.Fatal(err)
			}
			q.SetPosition(pos)
			before := q.Position()
			if err := q.Consume(); err != nil || before >= g.Slots || q.Position() != (before+1)%g.Slots {
				t.Fatalf("position %d after %d of %d slots, %v", q.Position(), before, g.Slots, err)
			}
			if err := q.ConsumeAll(); err != nil || q.Pending() != 0 || q.Position() >= g.Slots {
				t.Fatalf("%d pending at position %d after all were consumed, %v", q.Pending(), q.Position(), err)
			}
		}
	})
}

// rdma-core 34 to 54 leave the consumer index of a completion queue one ahead of the producer's for
// a moment: that is no room, and no loss.
func TestConsumerOneAhead(t *testing.T) {
	q := queueOf(t, 3, CQESize)
	binary.LittleEndian.PutUint32(q.Bytes()[offConsumer:], 1)
	if q.Free() != 0 {
		t.Errorf("%d free, want 0", q.Free())
	}
	binary.LittleEndian.PutUint32(q.Bytes()[offConsumer:], 0)
	if q.Free() != 3 {
		t.Errorf("%d free, want 3", q.Free())
	}
}
