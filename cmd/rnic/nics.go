package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
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
	rows := describe(ctx, nics)
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
	fmt.Fprintln(w, "PID\tUSER\tDEVICE\tMTU\tADDRESSES\tCOMMAND")
	for _, r := range rows {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", r.PID, userName(r.UID), r.Device, r.mtu(), r.addresses(), r.Command)
	}
	return w.Flush()
}

// listTime bounds how long the list waits for processes that have said what they have, but do not describe it.
const listTime = 3 * time.Second

// describe asks for the devices of all processes at once: to root some of these are of strangers, who may keep silent. Who does
// not answer in time, or ends just now, is listed with what is known.
func describe(ctx context.Context, nics []control.NIC) []nicRow {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	rows := []nicRow{}
	for i := range nics {
		for _, d := range nics[i].Devices {
			rows = append(rows, nicRow{PID: nics[i].PID, UID: nics[i].UID, Device: d, Command: nics[i].Command, Version: nics[i].Version})
		}
	}
	var asked sync.WaitGroup
	for left, i := rows, 0; i < len(nics); i++ {
		own := left[:len(nics[i].Devices)]
		left = left[len(own):]
		asked.Go(func() {
			for j := range own { // one after the other: a process takes few connections
				if ask(ctx, &nics[i], "info", deviceArgs{own[j].Device}, &own[j].deviceInfo) != nil {
					own[j].deviceInfo = deviceInfo{}
				}
			}
		})
	}
	asked.Wait()
	return rows
}

// userName is the name of a user, or the number if it has none here.
func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}

// mtu is the path MTU, "-" of a process that has not told it.
func (r *nicRow) mtu() string {
	if r.MTU == 0 {
		return "-"
	}
	return strconv.Itoa(r.MTU)
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
