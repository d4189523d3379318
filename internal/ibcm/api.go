// Package ibcm is the communication manager of InfiniBand (vol. 1, chapter 12) as a pure state machine: datagrams,
// commands and the time come in, datagrams and events go out. One CM serves one device. It knows no queue pairs: whoever drives it moves
// those as the events say.
//
// Datagrams are MADs of 256 bytes (vol. 1, 13.4, class 7 version 2). Everything from the wire is untrusted: what is malformed,
// out of place or of an unknown communication id is dropped, or rejected where the specification says so, and counted.
package ibcm

import "rnic/internal/roce"

// MADSize is the length of a management datagram in bytes.
const MADSize = 256

// Address is where a MAD goes to or comes from: the GIDs of the two ports.
type Address struct{ Local, Remote roce.GID }

// Datagram is one MAD to be sent from queue pair 1 to queue pair 1.
type Datagram struct {
	Address
	MAD [MADSize]byte
}

// Config is what a CM is made with. Zero fields mean the defaults in brackets.
type Config struct {
	Seed     [32]byte // of communication and transaction ids
	NodeGUID [8]byte  // of the device, in REQ and REP

	// MaxConns bounds what the wire can cause: requests that nobody has answered yet, of all listeners together [65536].
	MaxConns int

	// EarlyWait is how long a request waits, in nanoseconds, for somebody to listen for its service [0: it is refused at once].
	EarlyWait int64

	Planted Planted // tests only
}

// Planted is a fault planted into the CM, to show that the simulator catches it. Tests only.
type Planted uint8

const (
	PlantedNone         Planted = iota
	PlantedRTUOnce              // an RTU that was lost is not repeated
	PlantedStaleID              // messages are taken whatever their address, the sender's id and the queue pair
	PlantedNoTimewait           // ids are forgotten at once
	PlantedRequestTwice         // a REQ that comes again makes another connection
)

// Lengths of what users may add to messages, in bytes (vol. 1, 12.6).
const (
	ReqPrivate     = 92
	RepPrivate     = 196
	RejPrivate     = 148
	RejInfo        = 72
	RtuPrivate     = 224
	MraPrivate     = 222
	DreqPrivate    = 220
	DrepPrivate    = 224
	SIDRReqPrivate = 216
	SIDRRepPrivate = 136
	SIDRRepInfo    = 72
)

// Connection is what both sides of a connection tell each other of their queue pairs.
type Connection struct {
	QPN                uint32
	QKey               uint32
	StartingPSN        uint32 // at which the receiver of the message begins to send (12.7.31)
	ResponderResources uint8  // READs and atomics that it answers at a time
	InitiatorDepth     uint8  // READs and atomics that it has in flight
	FlowControl        bool   // end to end
	RNRRetry           uint8
	SRQ                bool
	ECE                ECE
}

// Request is a REQ (vol. 1, 12.6.5).
type Request struct {
	Connection
	ServiceID   uint64
	RemoteGUID  [8]byte // of a REQ received
	Transport   Transport
	RetryCount  uint8
	PathMTU     uint8 // code: 1 is 256 bytes, 5 is 4096
	AckTimeout  uint8 // local ACK timeout of the path, 4.096 us * 2^n
	Primary     Path
	Alternate   Path // of no meaning if its GIDs are zero
	PKey        uint16
	Private     []byte // ReqPrivate bytes of a REQ received; the caller's copy of one that is sent
	MaxCMRetry  uint8  // how often messages of the CM are repeated [15]
	RespTimeout uint8  // how long the peer may take for its answer, 4.096 us * 2^n [20, 4.3 s]
}

// Path is one path of a REQ or LAP.
type Path struct {
	Local, Remote roce.GID // of the sender of the message, and of its receiver
	FlowLabel     uint32
	TrafficClass  uint8
	HopLimit      uint8
	SL            uint8
	PacketRate    uint8
	AckTimeout    uint8
}

// Transport is the type of service in a REQ.
type Transport uint8

const (
	TransportRC  Transport = 0
	TransportUC  Transport = 1
	TransportXRC Transport = 3 // extended: with the transport type extension 1

	transportUnknown Transport = 0xff
)

// Reply is a REP (12.6.8).
type Reply struct {
	Connection
	AckDelay   uint8 // target ACK delay
	Failover   uint8 // whether an alternate path was accepted
	RemoteGUID [8]byte
	Private    []byte
}

// Reason is why a REJ was sent (12.6.7.2).
type Reason uint16

const (
	RejNoQP             Reason = 1
	RejNoEEC            Reason = 2
	RejNoResources      Reason = 3
	RejTimeout          Reason = 4
	RejUnsupported      Reason = 5
	RejInvalidCommID    Reason = 6
	RejInvalidInstance  Reason = 7
	RejInvalidServiceID Reason = 8
	RejInvalidTransport Reason = 9
	RejStale            Reason = 10
	RejNoRDC            Reason = 11
	RejInvalidGID       Reason = 12
	RejInvalidLID       Reason = 13
	RejInvalidMTU       Reason = 26
	RejConsumer         Reason = 28
)

// EventType says what happened. Of EventRejected, EventUnreachable, EventDisconnect and EventDisconnected a connection has one at most: its end.
type EventType uint8

const (
	EventRequest      EventType = iota + 1 // passive: a REQ for a listener; Conn is new
	EventReply                             // active: the REP has come: answer with Ready or Reject
	EventReady                             // passive: the RTU has come
	EventEstablished                       // passive: data came before the RTU (Conn.Established)
	EventRejected                          // REJ: Reason, Info, Private
	EventMoreTime                          // MRA: the peer needs longer
	EventDisconnect                        // DREQ: answer with DisconnectReply, if the state is DreqReceived; or the peer does not know the connection any more
	EventDisconnected                      // DREP, or the DREQ was never answered (Err)
	EventTimewaitEnd                       // the queue pair of a connection that was made may be used again
	EventUnreachable                       // no answer to REQ or REP after all repetitions
	EventLookup                            // passive: a SIDR_REQ for a listener
	EventLookupReply                       // active: SIDR_REP
	EventLookupFailed                      // no answer to a SIDR_REQ
)

// Event is one event. What it points to is valid until the next call of the CM.
type Event struct {
	Type     EventType
	Conn     *Conn
	Lookup   *Lookup
	Listener *Listener
	Request  *Request
	Reply    *Reply
	Reason   Reason
	Info     []byte
	Private  []byte
	Address  Address
	Err      bool // EventDisconnected: there was no answer

	// Lookups.
	ServiceID uint64
	Status    LookupStatus
	QPN, QKey uint32
	PKey      uint16
}

// LookupStatus is the status of a SIDR_REP (12.11.2.3).
type LookupStatus uint8

const (
	LookupOK          LookupStatus = 0
	LookupUnsupported LookupStatus = 1
	LookupReject      LookupStatus = 2
	LookupNoQP        LookupStatus = 3
	LookupRedirect    LookupStatus = 4
	LookupVersion     LookupStatus = 5
)
