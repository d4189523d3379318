package ucm

import (
	"math/rand/v2"
	"sync"
	"testing"

	"rnic/internal/cma"
	"rnic/internal/device"
)

// hostile sends commands of a fuzzer's bytes: for each a command, an id or none that there is, a file, and changes of single bytes. Every call
// is answered, and once.
func (p *program) hostile(files []int, b []byte) {
	num := uint32(0)
	for len(b) >= 4 {
		forms := append(p.wellFormed(num), newForm("create_id", "ps", psTCP, "uid", 1), newForm("create_id", "ps", psUDP, "uid", 1), newForm("get_event"))
		f := forms[int(b[0])%len(forms)]
		num = uint32(b[1] % 16)
		fd := files[int(b[2])%len(files)]
		changes := int(b[3] % 4)
		for b = b[4:]; changes > 0 && len(b) >= 2; changes-- {
			f.b[int(b[0])%len(f.b)] = b[1]
			b = b[2:]
		}
		if f.name == "MIGRATE_ID" {
			f.set("fd", files[int(num)%len(files)])
		}
		at := p.space()
		if f.responds() && f.num("response") == 0 {
			f.set("response", at+responseAt)
		}
		c := p.call(fd)
		c.nonblock = true
		p.write(c, at, f.command(), f.b, 512)
		c.wait()
	}
}

// Whatever a program writes is answered, once; nothing is left when it has closed its files.
func FuzzCommands(f *testing.F) {
	f.Add([]byte{22, 0, 0, 0, 1, 1, 0, 0, 10, 1, 0, 0, 22, 0, 0, 0, 3, 2, 0, 0, 4, 2, 0, 0, 9, 2, 0, 0, 24, 0, 0, 0})
	f.Add([]byte{23, 0, 0, 0, 1, 1, 0, 0, 19, 1, 0, 1, 40, 0xe0, 20, 1, 1, 0, 21, 1, 0, 0})
	dev, err := device.New(device.Config{Local: true, Seed: 1})
	if err != nil {
		f.Fatal(err)
	}
	mgr, err := cma.New(dev)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { mgr.Close(); dev.Close() })
	f.Fuzz(func(t *testing.T, b []byte) {
		p := programOn(t, mgr, dev)
		p.hostile([]int{p.open(), p.open()}, b)
		p.end()
	})
}

// Threads of a program do anything at the same time, while others close files.
func TestThreads(t *testing.T) {
	p := newProgram(t)
	var all sync.WaitGroup
	for i := range uint64(4) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(1, i))
			for range 20 {
				files := []int{p.open(), p.open()}
				b := make([]byte, 200)
				for k := range b {
					b[k] = byte(r.Uint32())
				}
				p.hostile(files, b)
				waits := p.call(files[0])
				at := p.space()
				p.write(waits, at, commandNumbers["GET_EVENT"], newForm("get_event", "response", at+responseAt).b, sizeEvent)
				for _, fd := range files {
					p.close(fd)
				}
				waits.invalid.Store(true)
				waits.wait()
			}
		})
	}
	all.Wait()
}
