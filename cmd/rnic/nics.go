package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"rnic/internal/control"
)

// NICsCmd is rnic nics.
type NICsCmd struct {
	nicOption
	JSON bool `name:"json" help:"Print a JSON array."`
}

// nicRow is one device of the list.
type nicRow struct {
	PID     int    `json:"pid"`
	UID     int    `json:"uid"`
	Device  string `json:"device"`
	Command string `json:"command"`
	Version string `json:"version"`
	deviceInfo
}

// Run lists the NICs that commands of this user can reach.
func (c *NICsCmd) Run(ctx context.Context) error {
	nics, err := control.Find()
	if err != nil {
		return err
	}
	if c.NIC != "" {
		n, device, err := c.find()
		if err != nil {
			return err
		}
		nics = []control.NIC{*n}
		nics[0].Devices = []string{device}
	}
	rows := []nicRow{}
	for i := range nics {
		for _, d := range nics[i].Devices {
			row := nicRow{PID: nics[i].PID, UID: nics[i].UID, Device: d, Command: nics[i].Command, Version: nics[i].Version}
			// Who ends just now is listed with what is known.
			_ = ask(ctx, &nics[i], "info", deviceArgs{d}, &row.deviceInfo)
			rows = append(rows, row)
		}
	}
	if c.JSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		return e.Encode(rows)
	}
	if len(rows) == 0 {
		fmt.Fprintln(os.Stderr, "No NIC of this user runs in this network namespace.")
		return nil
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PID\tDEVICE\tMTU\tADDRESSES\tCOMMAND")
	for _, r := range rows {
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s\n", r.PID, r.Device, r.MTU, r.addresses(), r.Command)
	}
	return w.Flush()
}

// addresses are at most four: they come from another process.
func (r *nicRow) addresses() string {
	var s []string
	for _, text := range r.Addresses {
		if a, err := netip.ParseAddr(text); err == nil && len(s) < 4 {
			s = append(s, a.WithZone("").String())
		}
	}
	if n := len(r.Addresses) - len(s); n > 0 {
		s = append(s, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(s, " ")
}

// nicOption is the option with which commands choose a running NIC.
type nicOption struct {
	NIC string `name:"nic" placeholder:"NAME|PID" help:"The NIC, where several run: its device's name, its process, or PID/NAME (rnic nics lists them)."`
}

// find is the NIC that the option means: its process, and the device for the arguments of operations.
func (o *nicOption) find() (*control.NIC, string, error) {
	nics, err := control.Find()
	if err != nil {
		return nil, "", err
	}
	return control.Pick(nics, o.NIC)
}

// askTime bounds what a NIC's process may take to answer a command.
const askTime = 10 * time.Second

// ask carries out an operation that streams nothing.
func ask(ctx context.Context, n *control.NIC, op string, args, result any) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c, err := control.Dial(ctx, n)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.Call(ctx, op, args, result)
}
