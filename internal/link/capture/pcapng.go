package capture

import (
	"encoding/binary"
	"io"
	"os"
	"sync"
	"time"
)

// The blocks of draft-ietf-opsawg-pcapng that are written here.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockStats     = 5 // interface statistics block
	blockPacket    = 6 // enhanced packet block

	byteOrderMagic = 0x1a2b3c4d
	linkTypeEther  = 1

	optEnd             = 0
	optComment         = 1 // opt_comment
	optInterfaceName   = 2 // if_name
	optMissing         = 5 // isb_ifdrop
	optResolution      = 9 // if_tsresol
	optPacketFlags     = 2 // epb_flags
	optUserApplication = 4 // shb_userappl

	nanoseconds = 9 // if_tsresol: 10^-9 s

	inbound  = 1 // epb_flags, bits 0-1
	outbound = 2
)

const maxComment = 1024

const (
	bufferSize = 512 << 10
	flushAt    = bufferSize / 2 // leaves room for the longest packet
	flushEvery = 500 * time.Millisecond
)

// File is a pcapng file that several links may write to at once. What is
// written reaches the system within half a second, so that little is missing
// if the process is killed; an idle file costs nothing.
type File struct {
	mu         sync.Mutex
	w          io.Writer
	closer     io.Closer
	buf        []byte
	interfaces uint32
	stream     *stream // nil: the file is written to by whoever fills the buffer
	missing    uint64  // packets that found no room in the stream's buffer
	flusher    *time.Timer
	armed      bool // flusher will run
	closed     bool
	err        error // of the first write that failed; nothing is written after it
}

// Create makes the file at path, which only its owner may read, also if it is there already: packets carry
// the programs' data. A pipe, whose reader may not keep up, is a stream with room for createRoom bytes.
func Create(path string) (*File, error) {
	f, regular, err := OpenPrivate(path)
	if err != nil {
		return nil, err
	}
	var file *File
	if regular {
		file = NewFile(f)
	} else {
		file = NewStream(f, createRoom)
	}
	file.closer = f
	return file, nil
}

// createRoom is what waits for the reader of a pipe at most, in bytes.
const createRoom = 64 << 20

// OpenPrivate opens a file for writing, and makes it if need be; a regular one only its owner may read.
func OpenPrivate(path string) (f *os.File, regular bool, err error) {
	if f, err = os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600); err != nil {
		return nil, false, err
	}
	st, err := f.Stat()
	if err == nil {
		if regular = st.Mode().IsRegular(); regular {
			err = f.Chmod(0o600)
		}
	}
	if err != nil {
		f.Close()
		return nil, false, err
	}
	return f, regular, nil
}

// NewFile writes to w, which it does not close.
func NewFile(w io.Writer) *File {
	f := &File{w: w, buf: make([]byte, 0, bufferSize)}
	f.flusher = time.AfterFunc(time.Hour, f.flushLater)
	f.flusher.Stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	start := f.begin(blockSection)
	f.u32(byteOrderMagic)
	f.u16(1) // version 1.0
	f.u16(0)
	f.u32(0xffffffff) // section length: not known
	f.u32(0xffffffff)
	f.option(optUserApplication, "rnic")
	f.u32(optEnd)
	f.end(start)
	f.written()
	return f
}

// addInterface describes one more interface and returns its number.
func (f *File) addInterface(name string) uint32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	start := f.begin(blockInterface)
	f.u16(linkTypeEther)
	f.u16(0)
	f.u32(0) // no limit on the captured length
	f.option(optInterfaceName, name[:min(len(name), 1024)])
	f.option(optResolution, string([]byte{nanoseconds}))
	f.u32(optEnd)
	f.end(start)
	f.written()
	f.interfaces++
	return f.interfaces - 1
}

// beginPacket starts an enhanced packet block for frame bytes at unix time
// nanos. The caller holds mu, appends the frame and calls endPacket.
func (f *File) beginPacket(iface uint32, nanos int64, frame int) int {
	start := f.begin(blockPacket)
	f.u32(iface)
	f.u32(uint32(uint64(nanos) >> 32))
	f.u32(uint32(nanos))
	f.u32(uint32(frame))
	f.u32(uint32(frame))
	return start
}

func (f *File) endPacket(start int, direction uint32, comment string) {
	f.pad()
	if comment != "" {
		f.option(optComment, comment[:min(len(comment), maxComment)])
	}
	f.u16(optPacketFlags)
	f.u16(4)
	f.u32(direction)
	f.u32(optEnd)
	f.end(start)
	f.written()
}

// begin starts a block; its length is filled in by end.
func (f *File) begin(typ uint32) int {
	start := len(f.buf)
	f.u32(typ)
	f.u32(0)
	return start
}

func (f *File) end(start int) {
	n := uint32(len(f.buf) - start + 4)
	binary.LittleEndian.PutUint32(f.buf[start+4:], n)
	f.u32(n)
}

func (f *File) u16(v uint16) { f.buf = binary.LittleEndian.AppendUint16(f.buf, v) }
func (f *File) u32(v uint32) { f.buf = binary.LittleEndian.AppendUint32(f.buf, v) }

func (f *File) option(code uint16, value string) {
	f.u16(code)
	f.u16(uint16(len(value)))
	f.buf = append(f.buf, value...)
	f.pad()
}

// pad fills up to a multiple of 4 bytes; every block starts at one.
func (f *File) pad() {
	for len(f.buf)%4 != 0 {
		f.buf = append(f.buf, 0)
	}
}

// written flushes a full buffer now and any other soon.
func (f *File) written() {
	if f.stream != nil {
		if len(f.buf) >= flushAt {
			f.stream.tell()
		}
		return
	}
	if len(f.buf) >= flushAt {
		f.flush()
	}
	if len(f.buf) > 0 && !f.armed && !f.closed {
		f.armed = true
		f.flusher.Reset(flushEvery)
	}
}

func (f *File) flushLater() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = false
	f.flush()
}

// flush writes the buffer out. After an error the file may end inside a block,
// so nothing more goes there. The caller holds mu.
func (f *File) flush() {
	if len(f.buf) > 0 && f.err == nil {
		_, f.err = f.w.Write(f.buf)
	}
	f.buf = f.buf[:0]
}

// Flush writes out what is buffered, and returns the first error of the file.
func (f *File) Flush() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stream == nil {
		f.flush()
	}
	return f.err
}

// Close flushes and closes the file and returns its first error: packets may
// be missing then, but traffic was not disturbed. Links may go on; what they
// carry is not recorded any more.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return f.err
	}
	if f.stream != nil {
		f.closeStream()
	} else {
		f.flush()
		f.closed = true
		f.flusher.Stop()
	}
	if f.closer != nil {
		if err := f.closer.Close(); f.err == nil {
			f.err = err
		}
	}
	return f.err
}
