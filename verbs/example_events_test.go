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
			case verbs.EventQPFatal, verbs.EventQPRequestError, verbs.EventPathMigError:
				fmt.Println("queue pair", e.QP.Num(), "has failed, or its second path cannot be used")
			case verbs.EventCQError:
				fmt.Println("a completion queue has overflowed: its queue pairs are in the error state")
			case verbs.EventConnEstablished:
				fmt.Println("queue pair", e.QP.Num(), "has got its first message")
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
