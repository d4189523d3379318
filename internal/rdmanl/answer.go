package rdmanl

// Caller is who sent a datagram.
type Caller struct {
	PortID uint32 // of the socket
	Admin  bool   // it has CAP_NET_ADMIN
}

// request is one message, with what answers it.
type request struct {
	sys    *System
	attrs  attributes
	op     uint16
	seq    uint32
	caller Caller
	cache  map[uint32]*Resources
	out    [][]byte
}

// operation answers requests: do one that asks for one thing, dump one that asks for all (NLM_F_DUMP). admin: it
// would change something, which this NIC has no way to do.
type operation struct {
	do, dump func(*request) errno
	admin    bool
}

var operations [opMask + 1]operation

func init() {
	operations[opGet] = operation{do: (*request).device, dump: (*request).devices}
	operations[opPortGet] = operation{do: (*request).port, dump: (*request).ports}
	operations[opSysGet] = operation{do: (*request).system}
	operations[opGetChardev] = operation{do: (*request).chardev}
	operations[opResGet] = operation{do: (*request).summary, dump: (*request).summaries}
	operations[opDelLink] = operation{do: (*request).delLink}
	operations[opStatGet] = operation{do: (*request).stat, dump: (*request).statDump}
	operations[opStatStatus] = operation{do: (*request).statStatus}
	for op, k := range kinds {
		operations[op] = operation{do: k.do, dump: k.dump}
	}
	for _, op := range []uint16{opSet, opNewLink, opSysSet, opStatSet, opStatDel, opResQPGetRaw, opResCQGetRaw, opResMRGetRaw} {
		operations[op].admin = true
	}
}

// Answer answers the requests in a datagram: the datagrams to send back, in order. Errors are answers too (struct
// nlmsgerr); of a dump they stand in the message that ends it.
func (s *System) Answer(datagram []byte, from Caller) [][]byte {
	r := request{sys: s, caller: from, cache: map[uint32]*Resources{}}
	dumped := false
	for {
		h, msg, rest, ok := cut(datagram)
		if !ok {
			return r.out
		}
		datagram = rest
		dump := h.flags&flagDump != 0
		var e errno
		switch {
		case h.flags&flagRequest == 0 || h.typ < typeFirstFree: // not for us, but acknowledged
		case dump && dumped:
			e = ebusy // as while the kernel's dump is not read to its end
		default:
			e = r.serve(&h, msg)
			if dump && e == 0 {
				dumped = true
				continue // the dump's end is the acknowledgement
			}
		}
		if e != 0 || h.flags&flagAck != 0 {
			r.acknowledge(&h, msg, e)
		}
	}
}

// serve answers one request.
func (r *request) serve(h *header, msg []byte) errno {
	r.op, r.seq = h.typ&opMask, h.seq
	if h.typ>>clientShift != clientNLDEV {
		return einval
	}
	o := &operations[r.op]
	if o.admin {
		if !r.caller.Admin {
			return eperm
		}
		return eopnotsupp
	}
	how := o.do
	dump := h.flags&flagDump != 0
	if dump {
		how = o.dump
	}
	if how == nil {
		return einval
	}
	attrs, ok := parse(msg[sizeHeader:])
	r.attrs = attrs
	e := einval
	if ok {
		e = how(r)
	}
	if dump {
		r.done(e)
		return 0
	}
	return e
}

// begin begins an answer of the operation.
func (r *request) begin(flags uint16) *message {
	return newMessage(clientNLDEV<<clientShift|r.op, flags, r.seq, r.caller.PortID)
}

func (r *request) send(m *message) { r.out = append(r.out, m.finish()) }

// done ends a dump.
func (r *request) done(e errno) {
	m := newMessage(typeDone, flagMulti, r.seq, r.caller.PortID)
	m.b = le.AppendUint32(m.b, uint32(-e))
	r.send(m)
}

// acknowledge sends struct nlmsgerr: an error with the request, no error with its header alone.
func (r *request) acknowledge(h *header, msg []byte, e errno) {
	var flags uint16
	if e == 0 || len(msg) > maxMessage/2 {
		flags, msg = flagCapped, msg[:sizeHeader]
	}
	m := newMessage(typeError, flags, h.seq, r.caller.PortID)
	m.b = le.AppendUint32(m.b, uint32(-e))
	m.b = append(m.b, msg...)
	m.pad()
	r.send(m)
}

// named is the device that the request names.
func (r *request) named() (*Device, errno) {
	index, ok := r.attrs.u32(attrDevIndex)
	if !ok {
		return nil, einval
	}
	for i := range r.sys.Devices {
		if r.sys.Devices[i].Index == index {
			return &r.sys.Devices[i], 0
		}
	}
	return nil, einval
}

// namedPort is the port that the request names, 0 if it names none.
func (r *request) namedPort(d *Device) (uint32, errno) {
	port, ok := r.attrs.u32(attrPortIndex)
	if !ok {
		return 0, 0
	}
	if port == 0 || uint64(port) > uint64(len(d.Ports)) {
		return 0, einval
	}
	return port, 0
}

// resources are those of a device, the same for all requests of the datagram.
func (r *request) resources(d *Device) *Resources {
	res := r.cache[d.Index]
	if res == nil {
		res = new(Resources)
		if d.Resources != nil {
			*res = d.Resources()
		}
		r.cache[d.Index] = res
	}
	return res
}
