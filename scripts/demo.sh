#!/bin/sh
# demo.sh - Debian's own, unmodified RDMA programs on the NIC, without RDMA hardware, kernel module or
# privilege.
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh demo
scripts/build.sh

who="uid $(id -u)"
[ "$(id -u)" != 0 ] || who="uid 65534 (nobody)"

heading() {
	printf '\n=== %s\n    Debian'\''s %s, server and client on one NIC in software, as %s\n\n' "$2" "$1" "$who"
}

heading ib_write_bw "bandwidth of RDMA WRITE, 64 KiB"
scripts/stock.sh ib_write_bw -F -s 65536 -n 5000
heading ib_send_lat "latency of SEND, 8 bytes"
scripts/stock.sh ib_send_lat -F -s 8 -n 5000
