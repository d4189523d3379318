package rdmanl

// Types of messages: enum { RDMA_NL_NLDEV = 5 } is the client, in the upper bits of nlmsg_type (RDMA_NL_GET_TYPE).
const (
	clientNLDEV = 5
	clientShift = 10
	opMask      = 1<<clientShift - 1
)

// Operations (enum rdma_nldev_command).
const (
	opGet         = 1
	opSet         = 2
	opNewLink     = 3
	opDelLink     = 4
	opPortGet     = 5
	opSysGet      = 6
	opSysSet      = 7
	opResGet      = 9
	opResQPGet    = 10
	opResCMIDGet  = 11
	opResCQGet    = 12
	opResMRGet    = 13
	opResPDGet    = 14
	opGetChardev  = 15
	opStatSet     = 16
	opStatGet     = 17
	opStatDel     = 18
	opResQPGetRaw = 19
	opResCQGetRaw = 20
	opResMRGetRaw = 21
	opResCtxGet   = 22
	opResSRQGet   = 23
	opStatStatus  = 24
)

// Attributes (enum rdma_nldev_attr).
const (
	attrDevIndex     = 1  // u32
	attrDevName      = 2  // string
	attrPortIndex    = 3  // u32
	attrCapFlags     = 4  // u64
	attrFWVersion    = 5  // string
	attrNodeGUID     = 6  // u64, in the byte order of the host
	attrSysImageGUID = 7  // u64
	attrPortState    = 12 // u8
	attrPortPhys     = 13 // u8
	attrNodeType     = 14 // u8

	attrResSummary      = 15 // nested
	attrResSummaryEntry = 16 // nested
	attrResSummaryName  = 17 // string
	attrResSummaryCurr  = 18 // u64

	attrResQP       = 19 // nested
	attrResQPEntry  = 20 // nested
	attrResLQPN     = 21 // u32
	attrResRQPN     = 22 // u32
	attrResRQPSN    = 23 // u32
	attrResSQPSN    = 24 // u32
	attrResMigState = 25 // u8
	attrResType     = 26 // u8
	attrResState    = 27 // u8
	attrResPID      = 28 // u32
	attrResKern     = 29 // text, instead

	attrResCMID      = 30 // nested
	attrResCMIDEntry = 31 // nested
	attrResPS        = 32 // u32
	attrResSrcAddr   = 33 // struct __kernel_sockaddr_storage
	attrResDstAddr   = 34

	attrResCQ      = 35 // nested
	attrResCQEntry = 36 // nested
	attrResCQE     = 37 // u32
	attrResUsers   = 38 // u64

	attrResMR      = 40 // nested
	attrResMREntry = 41 // nested
	attrResRKey    = 42 // u32
	attrResLKey    = 43 // u32
	attrResMRLen   = 45 // u64

	attrResPD      = 46 // nested
	attrResPDEntry = 47 // nested

	attrNdevIndex = 50 // u32
	attrNdevName  = 51 // string

	attrResPDN  = 60 // u32, as those that follow
	attrResCQN  = 61
	attrResMRN  = 62
	attrResCMN  = 63
	attrResCTXN = 64

	attrNetnsMode   = 66 // u8
	attrDevProtocol = 67 // string

	attrChardevType = 69 // string
	attrChardevName = 70 // string
	attrChardevABI  = 71 // u64
	attrChardev     = 72 // u64
	attrDriverID    = 73 // u32

	attrStatMode         = 74 // u32
	attrStatRes          = 75 // u32
	attrStatCounterID    = 79 // u32
	attrStatCounters     = 80 // nested
	attrStatCounterEntry = 81 // nested
	attrStatCounterName  = 82 // string
	attrStatCounterValue = 83 // u64

	attrDevDIM = 84 // u8

	attrResCtx      = 86 // nested
	attrResCtxEntry = 87 // nested
	attrResSRQ      = 88 // nested
	attrResSRQEntry = 89 // nested
	attrResSRQN     = 90 // u32
	attrMinRange    = 91 // u32
	attrMaxRange    = 92 // u32
	attrCopyOnFork  = 93 // u8
	attrStatIndex   = 94 // u32

	attrMax = 96
)

// Of linux/netlink.h.
const (
	sizeHeader = 16 // struct nlmsghdr: nlmsg_len, nlmsg_type, nlmsg_flags, nlmsg_seq, nlmsg_pid
	sizeAttr   = 4  // struct nlattr: nla_len, nla_type

	typeError     = 2  // NLMSG_ERROR
	typeDone      = 3  // NLMSG_DONE
	typeFirstFree = 16 // NLMSG_MIN_TYPE

	flagRequest = 0x1   // NLM_F_REQUEST
	flagMulti   = 0x2   // NLM_F_MULTI
	flagAck     = 0x4   // NLM_F_ACK
	flagDump    = 0x300 // NLM_F_DUMP; one of its bits is enough
	flagCapped  = 0x100 // NLM_F_CAPPED: an error that does not repeat the whole request

	attrNested   = 1 << 15   // NLA_F_NESTED
	attrTypeMask = 1<<14 - 1 // NLA_TYPE_MASK
)

// errno is a number of errno-base.h: what the kernel answers in struct nlmsgerr, there negative.
type errno int32

const (
	eperm      errno = 1
	enoent     errno = 2
	ebusy      errno = 16
	einval     errno = 22
	eopnotsupp errno = 95
)
