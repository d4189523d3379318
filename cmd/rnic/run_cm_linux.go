package main

import (
	"fmt"

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
		if r.cm, err = newCM(r.mgr, r.s, r.s, r.c.Verbose, logf); err != nil {
			return err
		}
	}
	for _, o := range r.own {
		o.mgr = r.mgr
		o.host.Serve(o.admit)
	}
	return nil
}

// newCM makes the front of a run on a connection manager, with its files.
func newCM(mgr *cma.Manager, sup ucm.Forgetter, t ucm.Tree, verbose bool, say func(string, ...any)) (*ucm.Driver, error) {
	var cfg ucm.Config
	if verbose {
		cfg.Logf, cfg.Trace = say, say
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
	cm *ucm.Driver
}

func (f joinedFront) Close() error {
	if f.cm != nil {
		f.cm.Close()
	}
	return f.Driver.Close()
}
