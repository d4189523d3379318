package uverbs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"rnic/internal/nic"
	"rnic/internal/ring"
)

// output collects what is told, and can be read meanwhile.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// await waits until something has been told.
func (o *output) await(t *testing.T, what string) {
	t.Helper()
	re := regexp.MustCompile(what)
	for deadline := time.Now().Add(20 * time.Second); !re.MatchString(o.String()); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("nothing like %q was told:\n%s", what, o)
		}
	}
}

// inOrder fails the test unless lines like these come in this order.
func (o *output) inOrder(t *testing.T, lines ...string) {
	t.Helper()
	rest := o.String()
	for _, l := range lines {
		at := regexp.MustCompile("(?m)" + l).FindStringIndex(rest)
		if at == nil {
			t.Errorf("no line like\n%s\nin the rest of what was told\n%s\nof\n%s", l, rest, o)
			return
		}
		rest = rest[at[1]:]
	}
}

// A program's commands, the events that it gets, and its end, each as one line.
func TestCommandsAreToldInLines(t *testing.T) {
	var out output
	p := newWatchedProgram(t, nil, Watch{Text: &out, Commands: true})
	fd, _ := p.context()
	pd, ch := p.pd(fd), p.compChannel(fd)
	cq, _ := p.cq(fd, ch, 1)
	mem := make([]byte, 4096)
	p.regMR(fd, pd, mem)
	a, b := p.connected(fd, pd, cq, cq)
	p.notify(fd, cq)
	b.receive0()
	a.send0()
	if !readable(t, ch, 10*time.Second) {
		t.Fatal("no completion event")
	}
	if errno := a.modify(nic.AttrState, func(b []byte) { b[96] = byte(nic.Init) }); errno == 0 {
		t.Fatal("RTS to INIT was allowed")
	}
	_, _ = p.ioctl(fd, objPD, 0, number(destroyHandle, 99))
	_ = p.command(fd, cmdQueryDevice, nil, nil, nil)
	_ = p.command(fd, exCreateWQ, make([]byte, 40), make([]byte, 24), nil)
	p.close(fd)
	p.drv.MemoryGone(p.pid)
	out.await(t, "-- process has ended")
	who := fmt.Sprintf(`^ +\d+\.\d{6} \[%d \S+\] `, p.pid)
	qa, qb := fmt.Sprintf("%#x", a.num), fmt.Sprintf("%#x", b.num)
	out.inOrder(t,
		who+`OPEN\(/dev/infiniband/uverbs0\) = fd \d+$`,
		who+`GET_CONTEXT\(\) = num_comp_vectors=1$`,
		who+`ALLOC_ASYNC_EVENT\(\) = fd=\d+$`,
		who+`ALLOC_PD\(\) = pd 1$`,
		who+`CREATE_COMP_CHANNEL\(\) = fd=\d+$`,
		who+`CREATE_CQ\(cqe=100, comp_vector=0, channel_fd=\d+\) = cq 2, cqe=127$`,
		who+fmt.Sprintf(`REG_MR\(pd=1, addr=%#x, length=4096, access=LOCAL_WRITE\|REMOTE_WRITE\) = mr 3 \(key 0x[0-9a-f]+\)$`, p.address(mem)),
		who+`CREATE_QP\(pd=1, type=RC, send_cq=2, recv_cq=2, send_wr=10, recv_wr=10, send_sge=2, recv_sge=2\) = qp 4 \(QPN `+qa+`\), send_wr=15, recv_wr=15, inline=32$`,
		who+`CREATE_QP\(.*\) = qp 5 \(QPN `+qb+`\)`,
		who+`MODIFY_QP\(qp=4 `+qa+`, RESET->INIT, port_num=1, pkey_index=0, access=LOCAL_WRITE\|REMOTE_WRITE\) = 0$`,
		who+`MODIFY_QP\(qp=4 `+qa+`, INIT->RTR, path_mtu=1024, dest_qp_num=`+qb+`, rq_psn=0x3e8, max_dest_rd_atomic=1, min_rnr_timer=12 \(640µs\), dgid=fd00::1, sgid_index=0 \(fd00::1\), hop_limit=64\) = 0$`,
		who+`MODIFY_QP\(qp=4 `+qa+`, RTR->RTS, sq_psn=0x3e8, max_rd_atomic=1, timeout=14 \(67.11ms\), retry_cnt=7, rnr_retry=7 \(for ever\)\) = 0$`,
		who+`REQ_NOTIFY_CQ\(cq=2\) = 0$`,
		who+`<- completion event\(cq=2\)$`,
		who+`MODIFY_QP\(qp=4 `+qa+`, RTS->INIT\) = -EINVAL \(a transition from RTS to INIT is not allowed\)$`,
		who+`DEALLOC_PD\(pd=99\?\) = -ENOENT \(there is no pd 99\)$`,
		who+`QUERY_DEVICE\(\) = -ENOSPC \(the library only asks.*\)$`,
		who+`EX_CREATE_WQ\(\) = -EOPNOTSUPP \(.*\)$`,
		who+`-- device closed; destroyed with it: 2 QPs, 1 CQ, 1 MR, 1 PD$`,
		who+`-- process has ended, or become another program$`)
	if !strings.Contains(out.String(), "<- IBV_EVENT_COMM_EST(qp=5 "+qb+")\n") && strings.Contains(out.String(), "COMM_EST") {
		t.Errorf("the event of the established connection is told otherwise:\n%s", &out)
	}
}

// Libraries that write their commands are told of with the same words.
func TestWrittenCommandIsTold(t *testing.T) {
	var out output
	p := newWatchedProgram(t, nil, Watch{Text: &out, Commands: true})
	fd, _ := p.context()
	b := make([]byte, 16)
	le.PutUint32(b, cmdAllocPD)
	le.PutUint16(b[4:], 4)
	le.PutUint16(b[6:], 1)
	le.PutUint64(b[8:], p.address(make([]byte, 4)))
	c := &fakeCall{p: p}
	p.drv.Write(c, p.files[fd], p.address(b), uint64(len(b)))
	p.must(c.errno)
	out.inOrder(t, `ALLOC_PD\(\) = pd 1$`)
}

// Every command that the device has is told by a name and arguments of its own, and no input makes telling fail.
func TestEveryCommandCanBeTold(t *testing.T) {
	var out output
	p := newWatchedProgram(t, nil, Watch{Text: &out, Commands: true, Pedantic: true})
	fd, _ := p.context()
	for num, c := range commands {
		if _, ok := tellCommands[num]; !ok && c.run != nil && num != cmdQueryDevice && num != exQueryDevice {
			t.Errorf("%s is told by its name alone", c.name)
		}
		for _, fill := range []byte{0, 1, 0xff} {
			if num == cmdGetContext {
				continue
			}
			req := bytes.Repeat([]byte{fill}, max(c.req, 8))
			_ = p.command(fd, num, req, make([]byte, max(c.resp, 4)), make([]byte, 64))
			if !strings.Contains(out.String(), c.name+"(") {
				t.Errorf("%s was not told:\n%s", c.name, &out)
			}
		}
	}
	for key, m := range methods {
		if _, ok := tellMethods[key]; !ok && key != methodInvokeWrite {
			t.Errorf("method %s.%s is told by its name alone", objectName(m.object), m.name)
		}
	}
}

type line struct {
	Type, Process, Command, Event, What, Warning, Error, Reason string
	Time                                                        float64
	PID, Errno                                                  int
	Args, Result                                                map[string]any
}

// jsonLines reads what was told as JSON: the records, and the summary, without which the last line fails the test.
func jsonLines(t *testing.T, text string) (records []line, summary map[string]any) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, l := range lines {
		if i == len(lines)-1 {
			if err := json.Unmarshal([]byte(l), &summary); err != nil || summary["type"] != "summary" {
				t.Fatalf("the last line: %v\n%s", err, l)
			}
			break
		}
		var r line
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			t.Fatalf("%v\n%s", err, l)
		}
		records = append(records, r)
	}
	return records, summary
}

// The same as JSON, with a summary of what queue pairs and NIC have done.
func TestCommandsAreToldAsJSON(t *testing.T) {
	for _, commands := range []bool{true, false} {
		var out output
		p := newWatchedProgram(t, nil, Watch{JSON: &out, Commands: commands})
		fd, _ := p.context()
		pd := p.pd(fd)
		cq, _ := p.cq(fd, -1, 1)
		a, b := p.connected(fd, pd, cq, cq)
		mem := []byte("twelve bytes")
		_, key := p.regMR(fd, pd, mem)
		for range 3 {
			b.receiveInto(mem, key)
			a.post(&ring.SendWQE{Opcode: ring.OpSend, Flags: ring.SendSignaled, NumSGE: 1, SGE: [ring.MaxSGE]ring.SGE{{Addr: p.address(mem), Length: 12, LKey: key}}})
			p.notify(fd, cq)
		}
		a.destroy()
		_, _ = p.ioctl(fd, objPD, 0, number(destroyHandle, 99))
		p.drv.Close()
		p.closed = true
		records, sum := jsonLines(t, out.String())
		if commands {
			i := slices.IndexFunc(records, func(r line) bool { return r.Command == "CREATE_QP" })
			if i < 0 || records[i].Args["type"] != "RC" || records[i].Result["qpn"] != float64(a.num) || records[i].PID != p.pid || records[i].Time <= 0 {
				t.Errorf("CREATE_QP: %+v", records)
			}
			i = slices.IndexFunc(records, func(r line) bool { return r.Error == "ENOENT" })
			if i < 0 || records[i].Command != "DEALLOC_PD" || records[i].Errno != 2 || records[i].Reason != "there is no pd 99" {
				t.Errorf("the command that failed: %+v", records)
			}
		} else if len(records) > 0 {
			t.Errorf("records without -v: %+v", records)
		}
		total, _ := sum["total"].(map[string]any)
		for name, want := range map[string]float64{"queue_pairs": 2, "sent_messages": 3, "sent_bytes": 36, "received_messages": 3, "received_bytes": 36, "failed_requests": 0} {
			if total[name] != want {
				t.Errorf("%s: %v, want %v\n%v", name, total[name], want, sum)
			}
		}
		if tx, rx := total["tx_packets"], total["rx_packets"]; tx != rx || tx == 0.0 {
			t.Errorf("%v packets sent, %v received", tx, rx)
		}
		each, _ := sum["queue_pairs"].([]any)
		if len(each) != 2 {
			t.Fatalf("queue pairs: %v", each)
		}
		first, _ := each[0].(map[string]any)
		if first["qpn"] != float64(a.num) || first["sent_messages"] != 3.0 || first["received_messages"] != 0.0 {
			t.Errorf("the queue pair that was destroyed first: %v", first)
		}
		if sum["failed_commands"] != 1.0 {
			t.Errorf("%v commands have failed, want 1", sum["failed_commands"])
		}
	}
}

func (q *qp) post(w *ring.SendWQE) {
	q.p.t.Helper()
	q.send.StoreSend(q.send.Position(), w, false)
	if err := q.send.Publish(); err != nil {
		q.p.t.Fatal(err)
	}
	q.doorbell()
}

func (q *qp) receiveInto(mem []byte, key uint32) {
	q.p.t.Helper()
	q.recv.StoreRecv(q.recv.Position(), &ring.RecvWQE{NumSGE: 1, SGE: [ring.MaxSGE]ring.SGE{{Addr: q.p.address(mem), Length: uint32(len(mem)), LKey: key}}})
	if err := q.recv.Publish(); err != nil {
		q.p.t.Fatal(err)
	}
}

// Events come with the NIC held: nothing is made for them, and nobody waits.
func TestEventsAreToldWithoutAllocation(t *testing.T) {
	held, w := io.Pipe() // nobody reads: the first write waits
	j := newJournal(Watch{Text: w, Commands: true})
	ctx := &verbsContext{}
	j.event(told{ctx: ctx, event: nic.EventCompletion, kind: "cq", id: 1})
	if n := testing.AllocsPerRun(2*maxTold, func() { j.event(told{ctx: ctx, event: nic.EventCompletion, kind: "cq", id: 1}) }); n >= 1 {
		t.Errorf("%v allocations for an event", n)
	}
	var out output
	copied := make(chan struct{})
	go func() {
		_, _ = io.Copy(&out, held)
		close(copied)
	}()
	j.close(nil)
	_ = w.Close()
	<-copied
	lines := strings.Count(out.String(), "completion event(cq=1)")
	lost := regexp.MustCompile(`-- (\d+) more events`).FindStringSubmatch(out.String())
	if lost == nil || lines < maxTold {
		t.Errorf("%d of some thousand events are told, and %v", lines, lost)
	}
}

// An output that fails is given up; the program goes on.
func TestOutputThatFails(t *testing.T) {
	for err, again := range map[error]bool{&os.PathError{Op: "write", Path: "pipe", Err: syscall.EPIPE}: false, errors.New("full"): true} {
		f := &failing{err: err}
		p := newWatchedProgram(t, nil, Watch{Text: f, Commands: true})
		fd, _ := p.context()
		p.pd(fd)
		p.drv.Close()
		p.closed = true
		if f.writes > 1 != again {
			t.Errorf("%v: %d writes", err, f.writes)
		}
	}
}

type failing struct {
	err    error
	writes int
}

func (f *failing) Write([]byte) (int, error) {
	f.writes++
	return 0, f.err
}

// What a program calls itself is no way to its user's terminal.
func TestNamesArePrintable(t *testing.T) {
	if got := printable("a\x1b[J\n"); got != "a?[J?" {
		t.Errorf("%q", got)
	}
}
