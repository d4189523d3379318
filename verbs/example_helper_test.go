package verbs_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"rnic/internal/testnet"
	"rnic/verbs"
)

// check ends the example: a real program does something about the error.
func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

// get is check for functions that return a value too.
func get[T any](v T, err error) T {
	check(err)
	return v
}

// side is what a program has: a queue pair with its completion queue and one memory region.
type side struct {
	ctx *verbs.Context
	pd  *verbs.PD
	cq  *verbs.CQ
	qp  *verbs.QP
	mr  *verbs.MR
}

// newSide opens dev and creates everything; cfg says what else the queue pair needs.
func newSide(dev *verbs.Device, cfg verbs.QPConfig) *side {
	s := &side{ctx: dev.Open()}
	s.pd = get(s.ctx.AllocPD())
	s.cq = get(s.ctx.CreateCQ(256))
	s.mr = get(s.pd.AllocMR(1<<20, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead|verbs.AccessRemoteAtomic))
	cfg.SendCQ, cfg.RecvCQ = s.cq, s.cq
	s.qp = get(s.pd.CreateQP(cfg))
	return s
}

// connect connects two RC queue pairs. Programs on two machines send each other the endpoints.
func connect(a, b *side) {
	ea, eb := get(a.qp.Local(0, 1000)), get(b.qp.Local(0, 2000))
	check(a.qp.Connect(eb, verbs.ConnectOptions{PSN: ea.PSN}))
	check(b.qp.Connect(ea, verbs.ConnectOptions{PSN: eb.PSN}))
}

// newPair makes two connected sides on one NIC. done closes everything.
func newPair(cfg verbs.QPConfig) (client, server *side, done func()) {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true}))
	client, server = newSide(dev, cfg), newSide(dev, cfg)
	connect(client, server)
	return client, server, func() { check(dev.Close()) }
}

// next waits for one completion.
func (s *side) next() verbs.WC {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var wc [1]verbs.WC
	get(s.cq.Next(ctx, wc[:]))
	return wc[0]
}

func address(n byte) netip.Addr { return testnet.Loopback(100, n) }

// post posts one send work request.
func (s *side) post(wr *verbs.SendWR) { get(s.qp.PostSend(wr)) }

// receive posts one receive into the region's bytes from off.
func (s *side) receive(id uint64, off, length int) {
	get(s.qp.PostRecv(&verbs.RecvWR{ID: id, SGE: s.mr.Slice(off, length)}))
}

func printWC(who string, wc verbs.WC) {
	fmt.Printf("%s: work request %d: %v\n", who, wc.ID, wc.Status)
}
