// Package reported has a test for each fault that people have met with other RDMA software and that a user of a NIC in
// software may meet again: the name of a test says what must happen. Those that need stock programs are in test/stock; docs/faults.md lists
// all of them, with the tests elsewhere that show the same.
package reported
