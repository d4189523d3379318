// Package cma is the RDMA connection manager: connections by IP address, as librdmacm's users know them (rdma_cm(7)). Its ids
// are what the kernel calls rdma_cm_id. It sits on internal/ibcm, which is the protocol, and on the management queue pair of each NIC.
//
// One Manager serves the NICs of one process; front ends (the kernel's user ABI, the Go package cm) share it, and so share ports.
// It moves no queue pairs: Attr says what each step needs, and the owner of the queue pair does it.
package cma

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"rnic/internal/ibcm"
	"rnic/internal/nic"
)

// PortSpace is enum rdma_port_space (rdma/rdma_user_cm.h).
type PortSpace uint16

const (
	SpaceTCP   PortSpace = ibcm.SpaceTCP   // connections: RC, or UC if the id says so
	SpaceUDP   PortSpace = ibcm.SpaceUDP   // datagrams
	SpaceIB    PortSpace = ibcm.SpaceIB    // any
	SpaceIPoIB PortSpace = ibcm.SpaceIPoIB // multicast of IP over InfiniBand: not on RoCE
)

// EventType is enum rdma_cm_event_type (rdma/rdma_cma.h).
type EventType uint32

const (
	AddrResolved EventType = iota
	AddrError
	RouteResolved
	RouteError
	ConnectRequest
	ConnectResponse
	ConnectError
	Unreachable
	Rejected
	Established
	Disconnected
	DeviceRemoval
	MulticastJoin
	MulticastError
	AddrChange
	TimewaitExit
)

func (t EventType) String() string {
	names := [...]string{"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE",
		"CONNECT_ERROR", "UNREACHABLE", "REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN", "MULTICAST_ERROR",
		"ADDR_CHANGE", "TIMEWAIT_EXIT"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprint(uint32(t))
}

// QKey is that of datagrams in SpaceUDP (RDMA_UDP_QKEY of the kernel).
const QKey = 0x01234567

// ConnParam is struct rdma_conn_param: what a side says of itself in Connect and Accept, and what the other side said in an event.
type ConnParam struct {
	Private            []byte
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	RetryCount         uint8
	RNRRetryCount      uint8
	SRQ                bool
	QPN                uint32
	QKey               uint32 // datagrams; 0: QKey
	ECE                ibcm.ECE
}

// UDParam is struct rdma_ud_param: where datagrams go.
type UDParam struct {
	Private []byte
	AH      nic.AHAttr
	QPN     uint32
	QKey    uint32
}

// Event is one event of an id. Slices are the receiver's.
type Event struct {
	Type   EventType
	ID     *ID
	Listen *ID // ConnectRequest: the listener; ID is new
	Status int // negative errno, or the reason of a rejection
	Conn   ConnParam
	UD     UDParam
	Member *Membership
}

// Sink takes the events of an id. It is called with the manager held: it must not block, nor call the manager.
type Sink func(Event)

// Errors of commands wrap a syscall.Errno, as the kernel answers.
func refuse(errno syscall.Errno, op string, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", op, fmt.Sprintf(format, args...), number{errno})
}

// number is a syscall.Errno that is the error of package verbs with the same number too: Go programs ask for those.
type number struct{ syscall.Errno }

func (n number) Unwrap() error { return n.Errno }

func (n number) Is(target error) bool {
	e, ok := target.(nic.Errno)
	return ok && map[syscall.Errno]nic.Errno{syscall.EINVAL: nic.EINVAL, syscall.ENOMEM: nic.ENOMEM}[n.Errno] == e
}

// Errno is the number in an error of this package: EINVAL if there is none.
func Errno(err error) syscall.Errno {
	var e syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e
	}
	var n nic.Errno
	if errors.As(err, &n) {
		return syscall.Errno(n)
	}
	return syscall.EINVAL
}

// unspecified tells whether an address stands for all of its family.
func unspecified(a netip.Addr) bool { return !a.IsValid() || a.IsUnspecified() }
