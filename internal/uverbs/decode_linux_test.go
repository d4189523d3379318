package uverbs

import (
	"errors"
	"syscall"
	"testing"
)

// ioctlBytes builds an ioctl: header and attributes.
func ioctlBytes(object, meth uint16, attrs ...attr) []byte {
	b := make([]byte, sizeIoctlHdr+len(attrs)*sizeIoctlAttr)
	le.PutUint16(b, uint16(len(b)))
	le.PutUint16(b[2:], object)
	le.PutUint16(b[4:], meth)
	le.PutUint16(b[6:], uint16(len(attrs)))
	le.PutUint32(b[16:], driverRXE)
	for i, a := range attrs {
		p := b[sizeIoctlHdr+i*sizeIoctlAttr:]
		le.PutUint16(p, a.id)
		le.PutUint16(p[2:], a.len)
		le.PutUint16(p[4:], a.flags)
		le.PutUint16(p[6:], a.enum)
		le.PutUint64(p[8:], a.data)
	}
	return b
}

func decode(b []byte) ([]attr, syscall.Errno) {
	h, errno := decodeIoctlHeader(b)
	if errno != 0 {
		return nil, errno
	}
	m := methods[uint32(h.Object)<<16|uint32(h.Method)]
	if m == nil {
		return nil, syscall.EPROTONOSUPPORT
	}
	return decodeAttrs(b[sizeIoctlHdr:], m)
}

// The errors of the kernel's own decoder (drivers/infiniband/core/uverbs_ioctl.c).
func TestErrorsOfAttributes(t *testing.T) {
	port := attr{id: portNum, len: 8, flags: 1, data: 1}
	resp := attr{id: portResp, len: 48, flags: 1, data: 0x1000}
	reserved := ioctlBytes(objDevice, 2, port, resp)
	reserved[8] = 1
	short := ioctlBytes(objDevice, 2, port, resp)
	short[0]--
	withEnum, withLen := port, port
	withEnum.enum = 1
	withLen.len = 4
	for name, c := range map[string]struct {
		b    []byte
		want syscall.Errno
	}{
		"in order":                     {ioctlBytes(objDevice, 2, port, resp), 0},
		"in another order":             {ioctlBytes(objDevice, 2, resp, port), 0},
		"unknown and mandatory":        {ioctlBytes(objDevice, 2, port, resp, attr{id: 77, flags: 1}), syscall.EPROTONOSUPPORT},
		"unknown and not mandatory":    {ioctlBytes(objDevice, 2, port, resp, attr{id: 77}), 0},
		"twice":                        {ioctlBytes(objDevice, 2, port, port, resp), syscall.EINVAL},
		"one missing":                  {ioctlBytes(objDevice, 2, port), syscall.EINVAL},
		"answer too short":             {ioctlBytes(objDevice, 2, port, attr{id: portResp, len: 40, flags: 1}), syscall.EINVAL},
		"input of another length":      {ioctlBytes(objDevice, 2, withLen, resp), syscall.EINVAL},
		"reserved field of attribute":  {ioctlBytes(objDevice, 2, withEnum, resp), syscall.EINVAL},
		"reserved field of header":     {reserved, syscall.EPROTONOSUPPORT},
		"length of header":             {short, syscall.EINVAL},
		"no such method":               {ioctlBytes(objDevice, 99), syscall.EPROTONOSUPPORT},
		"no such object":               {ioctlBytes(99, 0), syscall.EPROTONOSUPPORT},
		"object handle with a length":  {ioctlBytes(objPD, 0, attr{id: destroyHandle, len: 4, flags: 1}), syscall.EINVAL},
		"provider's part in any place": {ioctlBytes(objDevice, 2, attr{id: attrUHWIn, len: 16}, port, resp), 0},
	} {
		if _, errno := decode(c.b); errno != c.want {
			t.Errorf("%s: %v, want %v", name, errno, c.want)
		}
	}
}

func TestErrorsOfCommands(t *testing.T) {
	for num, want := range map[uint32]syscall.Errno{
		cmdQueryDevice: 0, exQueryDevice: 0, cmdResizeCQ: 0,
		7: syscall.EOPNOTSUPP, 99: syscall.EINVAL, 99 | commandExtended: syscall.EOPNOTSUPP, 0x40000001: syscall.EINVAL,
	} {
		if _, errno := lookup(num); errno != want {
			t.Errorf("command %#x: %v, want %v", num, errno, want)
		}
	}
}

// writeBytes builds a command of the write() ABI.
func writeBytes(cmd uint32, out int, body []byte) []byte {
	b := make([]byte, sizeCmdHdr, sizeCmdHdr+len(body))
	le.PutUint32(b, cmd)
	le.PutUint16(b[4:], uint16((sizeCmdHdr+len(body))/4))
	le.PutUint16(b[6:], uint16(out/4))
	return append(b, body...)
}

func TestWrittenCommandsAreTakenApart(t *testing.T) {
	body := make([]byte, 32) // CREATE_CQ, without a provider's part
	le.PutUint64(body, 0x7000)
	w, errno := decodeWrite(writeBytes(cmdCreateCQ, 8+16, body))
	if errno != 0 || w.cmd.num != cmdCreateCQ || len(w.req) != 32 || len(w.uhw) != 0 {
		t.Fatalf("%+v, %v", w, errno)
	}
	if w.resp != (span{0x7000, 8}) || w.uhwResp != (span{0x7008, 16}) {
		t.Errorf("answers at %+v and %+v", w.resp, w.uhwResp)
	}
	ext := make([]byte, sizeCmdHdr+sizeExCmdHdr+8+16)
	le.PutUint32(ext, exQueryDevice)
	le.PutUint16(ext[4:], 1)  // in_words
	le.PutUint16(ext[6:], 38) // out_words: 304 bytes
	le.PutUint64(ext[8:], 0x9000)
	le.PutUint16(ext[16:], 2) // provider_in_words
	le.PutUint16(ext[18:], 3) // provider_out_words
	w, errno = decodeWrite(ext)
	if errno != 0 || len(w.req) != 8 || len(w.uhw) != 16 || w.resp != (span{0x9000, 304}) || w.uhwResp != (span{0x9000 + 304, 24}) {
		t.Fatalf("%+v, %v", w, errno)
	}

	short := writeBytes(cmdQueryDevice, 176, make([]byte, 8))
	for name, c := range map[string]struct {
		b    []byte
		want syscall.Errno
	}{
		"less than a header":       {short[:4], syscall.EINVAL},
		"words that do not add up": {append(short, 0, 0, 0, 0), syscall.EINVAL},
		"answer too short":         {writeBytes(cmdQueryDevice, 172, make([]byte, 8)), syscall.ENOSPC},
		"request too short":        {writeBytes(cmdCreateCQ, 24, make([]byte, 24)), syscall.ENOSPC},
		"no such command":          {writeBytes(200, 0, nil), syscall.EINVAL},
	} {
		if _, errno := decodeWrite(c.b); errno != c.want {
			t.Errorf("%s: %v, want %v", name, errno, c.want)
		}
	}
}

func FuzzIoctl(f *testing.F) {
	f.Add(ioctlBytes(objDevice, 2, attr{id: portNum, len: 8, flags: 1, data: 1}, attr{id: portResp, len: 48, flags: 1}))
	f.Add(ioctlBytes(objQP, 0, attr{id: qpCap, len: 20, flags: 1, data: 0x1000}))
	f.Add(ioctlBytes(objDevice, 0, attr{id: invokeCommand, len: 8, flags: 1, data: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < sizeIoctlHdr {
			return
		}
		attrs, errno := decode(b)
		if errno != 0 {
			return
		}
		if errno := fetch(attrs, func(_ uint64, p []byte) error { clear(p); return nil }); errno != 0 {
			t.Fatal(errno)
		}
		for i := range attrs {
			if attrs[i].spec != nil && attrs[i].spec.kind == attrIn && len(attrs[i].value) != int(attrs[i].len) {
				t.Fatalf("attribute %#x of %d bytes holds %d", attrs[i].id, attrs[i].len, len(attrs[i].value))
			}
		}
		if errno := fetch(attrs, func(uint64, []byte) error { return errors.New("fault") }); errno != 0 && errno != syscall.EFAULT {
			t.Fatal(errno)
		}
	})
}

func FuzzWrite(f *testing.F) {
	f.Add(writeBytes(cmdCreateCQ, 24, make([]byte, 32)))
	f.Add(writeBytes(exQueryDevice, 0, make([]byte, 24)))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, errno := decodeWrite(b)
		if errno == 0 && len(w.req) < min(w.cmd.req, 8) {
			t.Fatalf("%s: request of %d bytes", w.cmd.name, len(w.req))
		}
	})
}
