// Package cm connects queue pairs of package verbs by IP address, as librdmacm does: it speaks the RDMA connection manager's protocol
// (InfiniBand vol. 1, chapter 12, and the RDMA IP CM service of its annex A11) with any other RoCE implementation.
//
//	mgr, err := cm.New(dev)
//	conn, err := mgr.Dial(ctx, netip.MustParseAddrPort("192.0.2.1:7471"), cm.Config{PD: pd, QP: verbs.QPConfig{SendCQ: cq, RecvCQ: cq}})
//	n, err := conn.QP().PostSend(...)
//
// The other side:
//
//	l, err := mgr.Listen(netip.MustParseAddrPort("0.0.0.0:7471"), cm.ListenConfig{})
//	req, err := l.Accept(ctx)
//	conn, err := req.Accept(ctx, cm.Config{PD: pd, QP: ...}) // or req.Reject(...)
//
// On top of it are byte streams, for programs that know nothing of RDMA: Manager.DialStream and Manager.ListenStream give net.Conn and
// net.Listener, for net/http, gRPC and the like.
//
// Errors wrap ErrRejected (a *RejectError says why), ErrUnreachable, ErrDisconnected, ErrClosed, the error of a context, the errors of
// package verbs (ErrInvalid for what may not be), or a syscall.Errno such as syscall.EADDRINUSE (errors.Is, errors.As). All methods may be called from several goroutines at once.
package cm
