package stock

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// cmpeer builds the Go side of connections beside the binary.
func cmpeer(t *testing.T) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(rnic(t)), "cmpeer")
	if out, err := exec.Command("go", "build", "-o", path, "rnic/test/cmpeer").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return path
}

// Programs of librdmacm and package cm connect, in both directions, and move what the programs move: SENDs, READs, WRITEs.
func TestGoConnectsWithLibrdmacm(t *testing.T) {
	peer := cmpeer(t)
	for _, c := range []struct {
		program        string
		server, client string // of librdmacm; the address of the Go server follows
		own            string // options of the Go side
		says           string // the client
	}{
		{"rping", "rping -s -C 5 -S 3000 -V", "rping -c -C 5 -S 3000 -V -v -a", "-C 5 -S 3000 rping", "rdma-ping-4"},
		{"rdma_client", "rdma_server", "rdma_client -s", "rdma", "rdma_client: end 0"},
		{"ucmatose", "ucmatose -c 20", "ucmatose -c 20 -s", "-C 20 ucmatose", "return status 0"},
	} {
		installed(t, c.program)
		t.Run(c.program+"/server in Go", func(t *testing.T) {
			goPair(t, peer+" -own 127.0.0.2 "+c.own, "$RNIC run --addr 127.0.0.1 -- "+c.client+" 127.0.0.2", c.says)
		})
		t.Run(c.program+"/client in Go", func(t *testing.T) {
			goPair(t, "$RNIC run -v --addr 127.0.0.1 -- "+c.server, fmt.Sprintf("%s -own 127.0.0.2 %s 127.0.0.1", peer, c.own), "cmpeer: done")
		})
	}
	t.Run("refused", func(t *testing.T) {
		installed(t, "rping")
		out, _ := terminals(t, goScript(peer+" -own 127.0.0.2 -reject rping", "$RNIC run --addr 127.0.0.1 -- rping -c -C 1 -a 127.0.0.2 || true"))
		if !strings.Contains(out, "RDMA_CM_EVENT_REJECTED, error 28") {
			t.Errorf("the client does not say what its server did:\n%s", out)
		}
	})
}

// goScript starts a server, waits until it says that it listens, and then runs a client.
func goScript(server, client string) string {
	return strings.NewReplacer("SERVER", server, "CLIENT", client).Replace(`
o=$(mktemp); SERVER >$o 2>&1 & s=$!
n=0; until grep -q LISTEN $o || [ $n -gt 1000 ]; do n=$((n+1)); sleep 0.02; done
CLIENT || { cat $o; die client; }
wait $s || { cat $o; die server; }
cat $o; rm $o`)
}

func goPair(t *testing.T, server, client, says string) {
	t.Helper()
	out, code := terminals(t, goScript(server, client))
	if code != 0 || !strings.Contains(out, says) || !strings.Contains(out, "cmpeer: done") {
		t.Errorf("exit code %d\n%s", code, out)
	}
}
