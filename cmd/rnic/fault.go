package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"unicode"

	"rnic/internal/control"
	"rnic/internal/fault"
)

// FaultCmd is rnic fault.
type FaultCmd struct {
	Add   FaultAddCmd   `cmd:"" help:"Plant a fault, as for rnic run --fault, and print its number."`
	List  FaultListCmd  `cmd:"" help:"List the faults with their counters."`
	Clear FaultClearCmd `cmd:"" help:"Take a fault away, or all."`
}

// FaultAddCmd is rnic fault add.
type FaultAddCmd struct {
	Spec string `arg:"" help:"[send:|recv:|both:]SPEC, as drop=1%,seed=7 or both:blackhole=2s: see docs/faults.md."`
	nicOption
	JSON bool `name:"json" help:"Print the fault as a JSON object."`
}

// FaultListCmd is rnic fault list.
type FaultListCmd struct {
	nicOption
	JSON bool `name:"json" help:"Print a JSON array."`
}

// FaultClearCmd is rnic fault clear.
type FaultClearCmd struct {
	ID int `arg:"" optional:"" help:"The fault's number. Without: all of them."`
	nicOption
	JSON bool `name:"json" help:"Print how many were cleared as a JSON object."`
}

// faultArgs are the arguments of the operations.
type faultArgs struct {
	deviceArgs
	Spec string `json:"spec,omitempty"`
	ID   int    `json:"id,omitempty"`
}

// faultRow is one fault, as listed.
type faultRow struct {
	ID         int    `json:"id"`
	Name       string `json:"name,omitempty"` // of a scenario's
	Spec       string `json:"spec"`
	State      string `json:"state"` // waiting, active or over
	Seen       uint64 `json:"seen"`  // packets
	Selected   uint64 `json:"selected"`
	Dropped    uint64 `json:"dropped"`
	Refused    uint64 `json:"refused"` // of those dropped: answered with a NAK
	Duplicated uint64 `json:"duplicated"`
	Corrupted  uint64 `json:"corrupted"`
	Reordered  uint64 `json:"reordered"`
	Delayed    uint64 `json:"delayed"`
	Marked     uint64 `json:"marked"`
	LinkDowns  uint64 `json:"link_downs"`

	DelayedCompletions uint64 `json:"delayed_completions"`
}

type cleared struct {
	Cleared int `json:"cleared"`
}

func rowOf(s *fault.Status) faultRow {
	c := &s.Counters
	return faultRow{s.ID, s.Name, s.Spec, s.State, c.Seen, c.Selected, c.Dropped, c.Refused, c.Duplicated, c.Corrupted, c.Reordered, c.Delayed, c.Marked,
		c.LinkDowns, c.DelayedCompletions}
}

// handleFaults gives the server the operations of rnic fault.
func (r *reachable) handleFaults() {
	handle := func(op string, f func(a *faultArgs) (any, error)) {
		r.server.Handle(op, func(_ context.Context, args json.RawMessage, c *control.Stream) error {
			var a faultArgs
			if err := json.Unmarshal(args, &a); err != nil {
				return err
			}
			answer, err := f(&a)
			if err != nil {
				return err
			}
			return c.Reply(answer)
		})
	}
	handle("fault-add", r.addFault)
	handle("fault-list", func(a *faultArgs) (any, error) { return r.listFaults(a.Device) })
	handle("fault-clear", r.clearFault)
}

func (r *reachable) addFault(a *faultArgs) (any, error) {
	d, err := r.device(a.Device)
	if err != nil {
		return nil, err
	}
	spec, err := fault.ParseRule(a.Spec)
	if err != nil {
		return nil, err
	}
	id, err := d.AddFault(spec)
	if err != nil {
		return nil, err
	}
	rows, err := r.listFaults(a.Device)
	for _, row := range rows {
		if row.ID == id {
			return row, err
		}
	}
	return faultRow{ID: id, Spec: spec.String(), State: "over"}, nil // cleared meanwhile
}

func (r *reachable) listFaults(name string) ([]faultRow, error) {
	d, err := r.device(name)
	if err != nil {
		return nil, err
	}
	rows := []faultRow{}
	for _, s := range d.Faults() {
		rows = append(rows, rowOf(&s))
	}
	return rows, nil
}

func (r *reachable) clearFault(a *faultArgs) (any, error) {
	d, err := r.device(a.Device)
	if err != nil {
		return nil, err
	}
	if a.ID == 0 {
		return cleared{d.ClearFaults()}, nil
	}
	return cleared{1}, d.ClearFault(a.ID)
}

// Run plants a fault.
func (c *FaultAddCmd) Run(ctx context.Context) error {
	spec, err := fault.ParseRule(c.Spec)
	if err == nil && !spec.Active() {
		err = fmt.Errorf("%w: no rule says what goes wrong: add one, such as drop=100%%", fault.ErrSpec)
	}
	if err != nil {
		return &runError{exitUsage, err}
	}
	n, dev, err := c.find()
	if err != nil {
		return err
	}
	var row faultRow
	if err := ask(ctx, n, "fault-add", faultArgs{deviceArgs: deviceArgs{dev}, Spec: c.Spec}, &row); err != nil {
		return err
	}
	if c.JSON {
		return printJSON(row)
	}
	fmt.Printf("fault %d planted into %s: %s\n", row.ID, dev, printable(row.Spec))
	return nil
}

// Run lists the faults.
func (c *FaultListCmd) Run(ctx context.Context) error {
	n, dev, err := c.find()
	if err != nil {
		return err
	}
	var rows []faultRow
	if err := ask(ctx, n, "fault-list", faultArgs{deviceArgs: deviceArgs{dev}}, &rows); err != nil {
		return err
	}
	if c.JSON {
		if rows == nil {
			rows = []faultRow{}
		}
		return printJSON(rows)
	}
	if len(rows) == 0 {
		fmt.Fprintf(os.Stderr, "No faults are planted into %s.\n", dev)
		return nil
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tSTATE\tSPECIFICATION\tWHAT HAPPENED")
	for i := range rows {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", rows[i].ID, printable(rows[i].State), rows[i].title(), rows[i].counters())
	}
	return w.Flush()
}

func (r *faultRow) title() string {
	if r.Name != "" {
		return printable(r.Name + ": " + r.Spec)
	}
	return printable(r.Spec)
}

// printable takes what a terminal would obey out of text of another process.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

func (r *faultRow) counters() string {
	return fault.Counters{Seen: r.Seen, Selected: r.Selected, Dropped: r.Dropped, Refused: r.Refused, Duplicated: r.Duplicated, Corrupted: r.Corrupted,
		Reordered: r.Reordered, Delayed: r.Delayed, Marked: r.Marked, LinkDowns: r.LinkDowns, DelayedCompletions: r.DelayedCompletions}.String()
}

// Run takes faults away.
func (c *FaultClearCmd) Run(ctx context.Context) error {
	if c.ID < 0 {
		return &runError{exitUsage, errors.New("the numbers of faults are from 1: rnic fault list tells them")}
	}
	n, dev, err := c.find()
	if err != nil {
		return err
	}
	var answer cleared
	if err := ask(ctx, n, "fault-clear", faultArgs{deviceArgs: deviceArgs{dev}, ID: c.ID}, &answer); err != nil {
		return err
	}
	if c.JSON {
		return printJSON(answer)
	}
	fmt.Printf("%d cleared from %s\n", answer.Cleared, dev)
	return nil
}

func printJSON(v any) error {
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
