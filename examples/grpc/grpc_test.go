package grpc_test

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"rnic/cm"
	"rnic/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// must ends the example: a real program does something about the error.
func must[T any](v T, err error) T {
	if err != nil {
		log.Panic(err)
	}
	return v
}

// gRPC over RDMA: the server takes the listener, the client a dialer. The service is that of gRPC's health checks.
func Example() {
	pid := os.Getpid() // an address that only this process uses: the NICs of others listen on the same port
	addr := netip.AddrFrom4([4]byte{127, 164 + byte(pid>>16&31), byte(pid >> 8), byte(pid) | 1})
	dev := must(verbs.NewDevice(verbs.DeviceConfig{Addrs: []netip.Addr{addr}}))
	defer dev.Close()
	mgr := must(cm.New(dev))
	defer mgr.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	l := must(mgr.ListenStream("rdma", net.JoinHostPort(addr.String(), "0")))
	srv := grpc.NewServer()
	state := health.NewServer()
	state.SetServingStatus("storage", grpc_health_v1.HealthCheckResponse_SERVING)
	grpc_health_v1.RegisterHealthServer(srv, state)
	go srv.Serve(l)
	defer srv.Stop()

	conn := must(grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return mgr.DialStream(ctx, "rdma", address)
		})))
	defer conn.Close()
	answer := must(grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "storage"}))
	fmt.Println(answer.Status)

	// Output: SERVING
}
