package perf

import (
	"fmt"
	"io"
	"os"
	"reflect"

	"rnic/internal/device"
	"rnic/verbs"
)

// report prints the counters of a NIC before it is closed, if that was asked for.
func (o *Options) report(d *verbs.Device) {
	if o.Counters {
		printCounters(os.Stderr, d.Unwrap())
	}
}

// printCounters writes every counter of a NIC that is not zero, on one line for the NIC and one for its link.
func printCounters(w io.Writer, d *device.Device) {
	net, loop := d.LinkStats()
	steps, sleeps, calls := d.UnitCounters()
	fmt.Fprintf(w, "%s:%s\n", d.Name(), nonZero(d.Stats()))
	fmt.Fprintf(w, "%s link:%s; loop:%s; steps=%d sleeps=%d caller_steps=%d\n", d.Name(), nonZero(net), nonZero(loop), steps, sleeps, calls)
}

// nonZero lists the fields of a structure of counters.
func nonZero(s any) (text string) {
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		if n := v.Field(i).Uint(); n != 0 {
			text += fmt.Sprintf(" %s=%d", v.Type().Field(i).Name, n)
		}
	}
	if text == "" {
		return " nothing"
	}
	return text
}
