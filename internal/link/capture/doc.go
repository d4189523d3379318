// Package capture writes packets as pcapng, for tshark and Wireshark. Links carry no Ethernet and IP headers, and those in memory no
// ICRC: these are made up from the packets' paths, the ICRC right.
package capture
