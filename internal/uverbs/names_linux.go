package uverbs

import (
	"fmt"

	"rnic/internal/nic"
)

// bitName names a bit of a set of flags.
type bitName struct {
	bit  uint64
	name string
}

// accessNames are of enum ib_uverbs_access_flags.
var accessNames = []bitName{
	{uint64(nic.AccessLocalWrite), "LOCAL_WRITE"}, {uint64(nic.AccessRemoteWrite), "REMOTE_WRITE"}, {uint64(nic.AccessRemoteRead), "REMOTE_READ"},
	{uint64(nic.AccessRemoteAtomic), "REMOTE_ATOMIC"}, {uint64(nic.AccessMWBind), "MW_BIND"}, {uint64(nic.AccessZeroBased), "ZERO_BASED"},
	{uint64(nic.AccessOnDemand), "ON_DEMAND"}, {uint64(nic.AccessHugeTLB), "HUGETLB"}, {uint64(nic.AccessFlushGlobal), "FLUSH_GLOBAL"},
	{uint64(nic.AccessFlushPersist), "FLUSH_PERSISTENT"}, {1 << 20, "RELAXED_ORDERING"},
}

// reregNames are of enum ibv_rereg_mr_flags.
var reregNames = []bitName{{1, "CHANGE_TRANSLATION"}, {2, "CHANGE_PD"}, {4, "CHANGE_ACCESS"}}

// flagNames names the bits of v; what has no name is a number.
func flagNames(v uint64, names []bitName) []string {
	set := []string{}
	for _, n := range names {
		if v&n.bit != 0 {
			set = append(set, n.name)
			v &^= n.bit
		}
	}
	if v != 0 {
		set = append(set, fmt.Sprintf("%#x", v))
	}
	return set
}

// numbered is a name, or the number if it has none.
func numbered(v uint64, names map[uint64]string) string {
	if s, ok := names[v]; ok {
		return s
	}
	return fmt.Sprint(v)
}

var qpTypeNames = map[uint64]string{2: "RC", 3: "UC", 4: "UD", 8: "RAW_PACKET", 9: "XRC_SEND", 10: "XRC_RECV", 0xff: "DRIVER"}

var migrationNames = map[uint64]string{0: "MIGRATED", 1: "REARM", 2: "ARMED"}

var mwTypeNames = map[uint64]string{1: "TYPE_1", 2: "TYPE_2"}

// eventNames are of enum ibv_event_type, without the prefix that all have.
var eventNames = map[nic.EventType]string{
	nic.EventCQErr: "CQ_ERR", nic.EventQPFatal: "QP_FATAL", nic.EventQPReqErr: "QP_REQ_ERR", nic.EventQPAccessErr: "QP_ACCESS_ERR",
	nic.EventCommEst: "COMM_EST", nic.EventSQDrained: "SQ_DRAINED", nic.EventPathMig: "PATH_MIG", nic.EventPathMigErr: "PATH_MIG_ERR",
	nic.EventDeviceFatal: "DEVICE_FATAL", nic.EventPortActive: "PORT_ACTIVE", nic.EventPortErr: "PORT_ERR", nic.EventSRQErr: "SRQ_ERR",
	nic.EventSRQLimit: "SRQ_LIMIT_REACHED", nic.EventQPLastWQE: "QP_LAST_WQE_REACHED", nic.EventGIDChange: "GID_CHANGE",
}

func eventName(t nic.EventType) string {
	if s, ok := eventNames[t]; ok {
		return "IBV_EVENT_" + s
	}
	return fmt.Sprintf("IBV_EVENT_%d", t)
}

func stateName(s nic.State) string {
	if s > nic.Err {
		return fmt.Sprint(uint8(s))
	}
	return s.String()
}
