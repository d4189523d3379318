package main

import (
	"fmt"
	"strings"
	"time"

	"rnic/test/guest"
)

// fioCases are fio's rdma engine, with headers in every block that the receiver verifies where data is sent to it (verb send), from depth 1
// to the engine's most, without and with loss. The side that reads is the server, whatever the operation.
func fioCases() (cases []testCase) {
	for _, verb := range []string{"write", "read", "send"} {
		for _, depth := range []string{"1", "8", "64", "512"} {
			for _, lossy := range []bool{false, true} {
				if lossy && depth == "8" {
					continue
				}
				// The engine asks for no repetition after an RNR NAK, so receives must be there for every block.
				receives := depth
				if verb == "send" {
					receives = "512"
				}
				c := fioPair("fio/"+verb+"/depth_"+depth, oneNIC, verb, depth, receives)
				if lossy {
					c = fioPair("fio/"+verb+"/depth_"+depth+"/loss", twoNICs, verb, depth, receives)
					c.run = []string{"--fault", "drop=1%,seed=5"}
				}
				cases = append(cases, c)
			}
		}
	}
	equal := fioPair("fio/send/depth_1_limit", oneNIC, "send", "1", "1")
	equal.timeout = 30 * time.Second
	return append(cases, equal)
}

// noRNRRetries is the limit of fio, which each case may meet whose server is behind its client: a block, or the word that it was the last,
// for which no receive has been posted yet.
func noRNRRetries() *limit {
	const common = " --thread --ioengine=rdma --port=551$i --bs=4k --size=16m --verify=crc32c --verify_state_save=0 --iodepth=1"
	return &limit{says: `RNR retry counter exceeded`, kernel: true,
		// The client waits for ever afterwards.
		script: "for i in 1 2 3 4 5 6; do timeout -s KILL 16 fio --name=server" + common + " --rw=read --verb=recv & s=$!; sleep 2; timeout -s KILL 12 fio --name=client" + common +
			" --do_verify=0 --rw=write --verb=send --hostname=" + guest.GuestAddress + "; c=$?; kill -9 $s; [ $c = 0 ] || break; done; echo client status $c; exit $c",
		reason: "fio connects with rnr_retry_count 0, so the first message for which the server has not posted a receive ends the connection (InfiniBand vol. 1, 9.7.5.2.8); " +
			"its source (engines/rdma.c) says that the receiving side should have the greater iodepth"}
}

// fioPair is one case; 512 blocks of 4 KiB.
func fioPair(id string, l layout, verb, depth, receives string) testCase {
	const blocks = " --thread --ioengine=rdma --port=5500 --bs=4k --size=2m --verify=crc32c --verify_state_save=0"
	remote := map[string]string{"write": "write", "read": "read", "send": "recv"}[verb]
	c := cmPair(id, l, fmt.Sprintf("fio --name=server%s --rw=read --verb=%s --iodepth=%s", blocks, remote, receives),
		fmt.Sprintf("fio --name=client%s --do_verify=0 --rw=write --verb=%s --iodepth=%s --hostname=%s", blocks, verb, depth, serverAddress))
	c.limit, c.againAnyway = noRNRRetries(), true
	// A client that is too early is started again, but it leaves a server that has heard half of it.
	c.again, c.after, c.check = `Connection refused|connect fail|REJECTED|UNREACHABLE`, time.Second, all(clientShows(`err= 0`, `WRITE: bw=`), func(o *outcome) error {
		if !strings.Contains(o.Server.Out, "err= 0") || strings.Contains(o.all(), "verify:") {
			return fmt.Errorf("the server says: %s", tail(o.Server.Out))
		}
		return nil
	})
	return c
}
