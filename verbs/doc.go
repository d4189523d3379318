// Package verbs gives Go programs RDMA verbs on a NIC of their own, which runs inside the program:
// no cgo, no kernel module, no privileges. The NIC speaks RoCEv2 (UDP port 4791) to any other: of
// another Go program, of programs under `rnic run`, of the kernel's Soft-RoCE, or of hardware.
//
// The names are those of libibverbs. A program makes a Device (the NIC), opens a Context, allocates a
// protection domain, registers memory, creates completion queues and queue pairs, connects them,
// posts work requests and polls completions:
//
//	dev, err := verbs.NewDevice(verbs.DeviceConfig{})
//	ctx := dev.Open()
//	pd, err := ctx.AllocPD()
//	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
//	cq, err := ctx.CreateCQ(64)
//	qp, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
//	own, err := qp.Local(0, psn)                       // for the peer, by any means
//	err = qp.Connect(peer, verbs.ConnectOptions{PSN: psn}) // what the peer's Local gave
//	err = qp.PostSend(&verbs.SendWR{ID: 1, Opcode: verbs.OpWrite, SGE: mr.Slice(0, 64), ...})
//	n, err := cq.Poll(wc)
//
// Errors of commands wrap ErrInvalid, ErrNoMemory, ErrBusy, ErrNotSupported, ErrFault or ErrClosed
// (errors.Is), those of completion queues also ErrOverrun, those of posting ErrQueueFull; errors of completions, see WC.Err, wrap the Status. Closing an object twice is no error. All methods may be called from several
// goroutines at once.
package verbs
