package cm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"time"

	"rnic/cm"
	"rnic/verbs"
)

// check ends the example: a real program does something about the error.
func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

// must is check for functions that return a value too.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// An echo of one message. Both sides are on one NIC here; programs on two machines have one each.
func Example() {
	dev := must(verbs.NewDevice(verbs.DeviceConfig{Addrs: []netip.Addr{address(1)}}))
	defer dev.Close()
	mgr := must(cm.New(dev))
	defer mgr.Close()
	vc := dev.Open()
	pd := must(vc.AllocPD())
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	// end is what each side needs: a completion queue, memory, and a receive that is posted before the peer can send.
	end := func(private string) (*verbs.CQ, *verbs.MR, cm.Config) {
		cq := must(vc.CreateCQ(16))
		mr := must(pd.AllocMR(4096, verbs.AccessLocalWrite))
		return cq, mr, cm.Config{PD: pd, QP: verbs.QPConfig{SendCQ: cq, RecvCQ: cq}, Private: []byte(private), Prepare: func(qp *verbs.QP) error {
			_, err := qp.PostRecv(&verbs.RecvWR{ID: 1, SGE: mr.Slice(0, 64)})
			return err
		}}
	}

	l := must(mgr.Listen(netip.AddrPortFrom(address(1), 0), cm.ListenConfig{}))
	served := make(chan struct{})
	go func() {
		defer close(served)
		cq, mr, cfg := end("welcome")
		req := must(l.Accept(ctx))
		fmt.Printf("request: %s\n", req.PrivateData()[:5])
		conn := must(req.Accept(ctx, cfg))
		defer conn.Close()
		var wc [1]verbs.WC
		must(cq.Next(ctx, wc[:]))
		must(conn.QP().PostSend(&verbs.SendWR{ID: 2, Opcode: verbs.OpSend, SGE: mr.Slice(0, wc[0].ByteLen)}))
		<-conn.Done() // the client disconnects
	}()

	cq, mr, cfg := end("hello")
	conn := must(mgr.Dial(ctx, l.Addr(), cfg))
	fmt.Printf("answer: %s\n", conn.PrivateData()[:7])
	n := copy(mr.Bytes()[64:], "echo this")
	must(conn.QP().PostSend(&verbs.SendWR{ID: 2, Opcode: verbs.OpSend, SGE: mr.Slice(64, n)}))
	var wc [1]verbs.WC
	must(cq.Next(ctx, wc[:]))
	fmt.Printf("echo: %s\n", mr.Bytes()[:wc[0].ByteLen])
	check(conn.Disconnect())
	check(conn.Close())
	<-served

	// Output:
	// request: hello
	// answer: welcome
	// echo: echo this
}

// net/http over RDMA: the server takes the listener, the client's transport the dialer.
func Example_http() {
	dev := must(verbs.NewDevice(verbs.DeviceConfig{Addrs: []netip.Addr{address(1)}}))
	defer dev.Close()
	mgr := must(cm.New(dev))
	defer mgr.Close()

	l := must(mgr.ListenStream("rdma", net.JoinHostPort(address(1).String(), "0")))
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := must(io.ReadAll(r.Body))
		fmt.Fprintf(w, "%s %s with %d bytes, over %s", r.Method, r.URL.Path, len(body), r.Context().Value(http.LocalAddrContextKey).(net.Addr).Network())
	})}
	go srv.Serve(l)
	defer srv.Close()

	transport := &http.Transport{DialContext: mgr.DialStream}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
	resp := must(client.Post("http://"+l.Addr().String()+"/upload", "application/octet-stream", io.LimitReader(zeros{}, 1<<20)))
	defer resp.Body.Close()
	fmt.Println(resp.Status)
	fmt.Printf("%s\n", must(io.ReadAll(resp.Body)))

	// Output:
	// 200 OK
	// POST /upload with 1048576 bytes, over rdma
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// Nobody listens: the error says so.
func ExampleRejectError() {
	dev := must(verbs.NewDevice(verbs.DeviceConfig{Addrs: []netip.Addr{address(1)}}))
	defer dev.Close()
	mgr := must(cm.New(dev))
	defer mgr.Close()

	_, err := mgr.DialStream(context.Background(), "rdma", net.JoinHostPort(address(1).String(), "7"))
	var why *cm.RejectError
	fmt.Println(errors.Is(err, cm.ErrRejected), errors.As(err, &why) && why.Reason == cm.ReasonNoListener)

	// Output: true true
}
