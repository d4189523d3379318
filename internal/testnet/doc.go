// Package testnet makes networks for tests: namespaces, and virtual Ethernet devices between them. Only tests import it. Everything ends
// with the test: namespaces go with the test's thread and the handles, devices with the namespaces.
//
// A thread is in one namespace, and sockets are of the one in which they were opened: open them in the test's own goroutine, in
// no subtest. Where the system or the user cannot make namespaces, the test is skipped and says so.
package testnet
