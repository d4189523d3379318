// Package explain reads captures of RoCEv2 traffic, of any NIC, and tells in words what went wrong in them.
//
//	Reader     frames of a pcap or pcapng file
//	Dissect    a frame's RoCEv2 packets
//	Analyzer   what the packets mean: connections, losses, refusals
//	Report     findings, with packet numbers and advice
//
// It is pure: what it says follows from the bytes of the file. A capture is hostile input: all state is bounded, and
// what is beyond the bounds is counted and left out.
package explain
