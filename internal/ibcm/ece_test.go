package ibcm

import (
	"bytes"
	"testing"
)

// Enhanced connection establishment: the vendor stands in what is reserved otherwise (12.6.5, 12.6.8, 12.11.2), the options in the attribute modifier
// (13.4.3), as kernels read and write them, and nothing else of the message changes.
func TestECE(t *testing.T) {
	e := ECE{Vendor: 0xa1b2c3, Options: 0x12345678}
	for name, test := range map[string]struct {
		set func(mad, ECE)
		get func(mad) ECE
		at  []int // of the vendor's bytes, in the body
	}{
		"REQ":      {mad.setREQECE, mad.reqECE, []int{5, 6, 7}},
		"REP":      {mad.setREPECE, mad.repECE, []int{15, 19, 23}},
		"SIDR_REP": {mad.setSIDRREPECE, nil, []int{6, 7, 11}},
	} {
		want := make([]byte, MADSize)
		copy(want[20:], []byte{0x12, 0x34, 0x56, 0x78})
		for n, at := range test.at {
			want[headerSize+at] = byte(e.Vendor >> (16 - 8*n))
		}
		got := mad(make([]byte, MADSize))
		test.set(got, e)
		if !bytes.Equal(got, want) {
			t.Errorf("%s:\n%x, want\n%x", name, []byte(got), want)
		}
		if test.get != nil && test.get(got) != e {
			t.Errorf("%s is read as %+v", name, test.get(got))
		}
		test.set(got, ECE{Vendor: 0xff000000}) // the vendor has 24 bits
		if !bytes.Equal(got, make([]byte, MADSize)) {
			t.Errorf("%s: more than a vendor is written: %x", name, []byte(got))
		}
	}
}

// What each side says reaches the other: with the request, and with its answer.
func TestECEPassesOn(t *testing.T) {
	n := newNet(t, 1, PlantedNone)
	_, err := n.hosts[1].cm.Listen(service, 0, nil)
	must(t, err)
	ask, answer := ECE{Vendor: 0x2c9, Options: 7}, ECE{Vendor: 0x2c9, Options: 3}
	r := request(n, 0x111)
	r.ECE = ask
	a, err := n.hosts[0].cm.Connect(n.now, n.addr(0), r, nil)
	must(t, err)
	n.pass(10 * microsecond)
	e := n.hosts[1].told[0]
	if e.Request.ECE != ask {
		t.Errorf("the request says %+v", e.Request.ECE)
	}
	p := reply(0x222)
	p.ECE = answer
	must(t, e.Conn.Accept(n.now, p))
	n.pass(10 * microsecond)
	if got := a.Peer(); got == nil || got.ECE != answer {
		t.Errorf("the answer says %+v", got)
	}
}
