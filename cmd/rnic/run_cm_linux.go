package main

import (
	"fmt"
	"sync"

	"rnic/internal/cma"
	"rnic/internal/device"
	"rnic/internal/rdmanl"
	"rnic/internal/ucm"
	"rnic/internal/uverbs"
)

// openCM makes the connection manager of this process's NICs, and gives it to the run, and to those that join. A run's connection
// manager is that of the process which has its first NIC.
func (r *supervised) openCM() (err error) {
	if len(r.own) == 0 {
		return nil
	}
	var devs []*device.Device
	for _, o := range r.own {
		devs = append(devs, o.dev)
	}
	if r.mgr, err = cma.New(devs...); err != nil {
		return err
	}
	if r.own[0].index == 0 {
		if r.cm, err = newCM(r.mgr, nil, r.s, r.s, r.own[0].drv); err != nil {
			return err
		}
	}
	all := newScopes()
	for _, o := range r.own {
		o.mgr, o.scopes = r.mgr, all
		o.host.Serve(o.admit)
	}
	return nil
}

// newCM makes the front of a run on a connection manager, with its files, for the NICs of a scope. What it tells is told with the run's first NIC.
func newCM(mgr *cma.Manager, scope *cma.Scope, sup ucm.Forgetter, t ucm.Tree, first *uverbs.Driver) (*ucm.Driver, error) {
	cfg := ucm.Config{Scope: scope}
	if first.Tells() {
		cfg.Tell = func(r ucm.Report) { first.Tell(uverbs.Report(r)) }
	}
	d, err := ucm.New(mgr, sup, cfg)
	if err != nil {
		return nil, err
	}
	if err := d.AddTo(t); err != nil {
		d.Close()
		return nil, fmt.Errorf("building the connection manager's files: %w", err)
	}
	return d, nil
}

// cmIDs are the connection manager's ids of a device, and of none, for those who list resources.
func cmIDs(mgr *cma.Manager, dev *device.Device) (list []rdmanl.CMID) {
	if mgr == nil {
		return nil
	}
	for _, i := range mgr.List() {
		if i.Device != nil && i.Device != dev {
			continue
		}
		c := rdmanl.CMID{Number: i.Number, PID: uint32(i.PID), QP: i.QPN, QPType: uint8(i.Type), PortSpace: uint32(i.Space), State: i.State, Src: i.Src, Dst: i.Dst}
		if i.Device != nil {
			c.Port = 1
		}
		list = append(list, c)
	}
	return list
}

// cmCounters are the connection manager's counters of a device.
func cmCounters(mgr *cma.Manager, dev *device.Device) []rdmanl.Counter {
	var c cma.Counters
	if mgr != nil {
		c = mgr.Counters(dev)
	}
	return []rdmanl.Counter{{Name: "cm_malformed", Value: c.Malformed}, {Name: "cm_unknown", Value: c.Unknown}, {Name: "cm_foreign", Value: c.Foreign},
		{Name: "cm_duplicates", Value: c.Duplicates}, {Name: "cm_backlog_drops", Value: c.BacklogDrops}}
}

// joinedFront is what a run that joins gets: the device, and the connection manager if it is the run's first.
type joinedFront struct {
	*uverbs.Driver
	cm    *ucm.Driver
	leave func() // the NIC is the run's no more
}

func (f joinedFront) Close() error {
	if f.cm != nil {
		f.cm.Close()
	}
	f.leave()
	return f.Driver.Close()
}

// scopes are the NICs of each run that has joined some of this process's, by what the run calls itself: it connects by their
// addresses alone.
type scopes struct {
	mu   sync.Mutex
	runs map[string]*runScope
}

type runScope struct {
	cma.Scope
	nics int
}

func newScopes() *scopes { return &scopes{runs: map[string]*runScope{}} }

// enter adds a NIC to those of a run, until leave.
func (s *scopes) enter(run string, d *device.Device) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.runs[run]
	if r == nil {
		r = &runScope{}
		s.runs[run] = r
	}
	r.Add(d)
	r.nics++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r.Remove(d)
		if r.nics--; r.nics == 0 {
			delete(s.runs, run)
		}
	}
}

// of is a run's scope, which has entered.
func (s *scopes) of(run string) *cma.Scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &s.runs[run].Scope
}
