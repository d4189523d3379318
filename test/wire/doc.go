// Package wire holds the tests of what goes over the wire: Wireshark dissects every operation without complaint, and rnic explain
// names the cause in captures of what goes wrong.
package wire
