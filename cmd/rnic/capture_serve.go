package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"rnic/internal/control"
	"rnic/internal/device"
	"rnic/internal/link/capture"
	"rnic/internal/roce"
)

// opCapture streams the packets of a device as pcapng.
const opCapture = "capture"

// captureArgs are the arguments of opCapture.
type captureArgs struct {
	deviceArgs
	QPNs    []uint32       `json:"qps,omitempty"`
	Peers   []netip.Prefix `json:"peers,omitempty"`
	Opcodes []roce.Opcode  `json:"-"`
	Codes   []uint16       `json:"opcodes,omitempty"` // Opcodes, as numbers
}

const (
	// captureRoom is what waits for a client that reads slowly, in bytes. It is taken as it is needed.
	captureRoom = 16 << 20
	// maxChosen bounds each list of a filter: every packet is compared with all.
	maxChosen = 256
)

// capture carries out opCapture, in the NIC's process.
func (r *reachable) capture(ctx context.Context, args json.RawMessage, conn *control.Stream) error {
	var a captureArgs
	if err := json.Unmarshal(args, &a); err != nil {
		return err
	}
	if len(a.QPNs) > maxChosen || len(a.Peers) > maxChosen || len(a.Codes) > maxChosen {
		return fmt.Errorf("more than %d queue pairs, peers or opcodes", maxChosen)
	}
	for _, c := range a.Codes {
		if c > 0xff {
			return fmt.Errorf("opcode %d: 0 to 255 are possible", c)
		}
		a.Opcodes = append(a.Opcodes, roce.Opcode(c))
	}
	d, err := r.device(a.Device)
	if err != nil {
		return err
	}
	w := &answered{w: conn, yes: make(chan struct{})}
	file := capture.NewStream(w, captureRoom)
	c, err := d.StartCapture(file, device.CaptureFilter{QPNs: a.QPNs, Peers: a.Peers, Opcodes: a.Opcodes})
	if err != nil {
		w.void = true
		close(w.yes)
		_ = file.Close()
		return err
	}
	err = conn.Reply(nil)
	close(w.yes)
	select {
	case <-ctx.Done():
	case <-c.Done():
	}
	c.Stop()
	_ = file.Close() // an error of the client's connection: it is gone
	return err
}

// answered is a stream that waits until the request has been answered.
type answered struct {
	w    *control.Stream
	yes  chan struct{}
	void bool
}

func (a *answered) Write(b []byte) (int, error) {
	<-a.yes
	if a.void {
		return len(b), nil
	}
	return a.w.Write(b)
}
