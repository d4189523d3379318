package verbs_test

import (
	"fmt"

	"rnic/verbs"
)

// Asynchronous events: a program that watches its port and addresses beside its queue pairs.
func ExampleContext_Events_port() {
	dev := get(verbs.NewDevice(verbs.DeviceConfig{Local: true})) // without a network the port is always up
	ctx := dev.Open()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range ctx.Events() { // until the context is closed
			switch e.Type {
			case verbs.EventPortError:
				fmt.Println("port", e.Port, "is down: what is posted is tried again until its retries end")
			case verbs.EventPortActive:
				fmt.Println("port", e.Port, "is up again")
			case verbs.EventGIDChange:
				fmt.Println("addresses are now", dev.GIDs())
			case verbs.EventQPFatal:
				fmt.Println("queue pair", e.QP.Num(), "has failed")
			}
		}
	}()
	fmt.Println("port active:", dev.PortActive())
	if err := dev.Close(); err != nil {
		fmt.Println(err)
	}
	<-done
	// Output:
	// port active: true
}
