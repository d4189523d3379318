package uverbs

import "syscall"

// method is one method of an object of the ioctl ABI.
type method struct {
	object, method uint16
	name           string
	attrs          []attrSpec
	run            func(*call) syscall.Errno
}

// attr finds an attribute's description.
func (m *method) attr(id uint16) *attrSpec {
	for i := range m.attrs {
		if m.attrs[i].id == id {
			return &m.attrs[i]
		}
	}
	return nil
}

// methods is the table of methods, by object<<16 | method. What is not in it is
// EPROTONOSUPPORT, upon which libraries turn to a command, or do without.
var methods map[uint32]*method

// methodInvokeWrite wraps a command.
const methodInvokeWrite = 0

// Attribute ids (rdma/ib_user_ioctl_cmds.h), where a method's own code needs them.
const (
	invokeCoreIn, invokeCoreOut, invokeCommand = 0, 1, 2

	portNum, portResp = 0, 1

	contextVectors, contextSupport = 0, 1

	gidTableEntrySize, gidTableFlags, gidTableEntries, gidTableCount = 0, 1, 2, 3
	gidEntryPort, gidEntryIndex, gidEntryFlags, gidEntryResp         = 0, 1, 2, 3

	cqHandle, cqCQE, cqUserHandle, cqCompChannel, cqCompVector, cqFlags, cqRespCQE, cqEventFD = 0, 1, 2, 3, 4, 5, 6, 7

	qpHandle, qpXRCD, qpPD, qpSRQ, qpSendCQ, qpRecvCQ, qpIndTable, qpUserHandle = 0, 1, 2, 3, 4, 5, 6, 7
	qpCap, qpType, qpFlags, qpSourceQPN, qpEventFD, qpRespCap, qpRespNum        = 8, 9, 10, 11, 12, 13, 14
	destroyHandle, destroyResp                                                  = 0, 1

	srqHandle, srqPD, srqXRCD, srqCQ, srqUserHandle, srqMaxWR, srqMaxSGE, srqLimit = 0, 1, 2, 3, 4, 5, 6, 7
	srqMaxTags, srqType, srqEventFD, srqRespMaxWR, srqRespMaxSGE, srqRespNum       = 8, 9, 10, 11, 12, 13

	mrHandle, mrRespLKey, mrRespRKey, mrRespLength, mrRespIOVA uint16 = 0, 1, 2, 3, 4

	advisePD, adviseAdvice, adviseFlags, adviseList uint16 = 0, 1, 2, 3
	dmabufHandle, dmabufPD, dmabufRespRKey          uint16 = 0, 1, 8

	handlesObject, handlesTotal, handlesList uint16 = 0, 1, 2
)

func init() {
	methods = map[uint32]*method{}
	for _, m := range [...]method{
		{objDevice, methodInvokeWrite, "INVOKE_WRITE", []attrSpec{
			{invokeCoreIn, "CORE_IN", attrIn, 4, anyLength, false},
			{invokeCoreOut, "CORE_OUT", attrOut, 0, anyLength, false},
			in(invokeCommand, "WRITE_CMD", 8)}, (*call).invokeWrite},
		{objDevice, 1, "INFO_HANDLES", []attrSpec{
			in(handlesObject, "OBJECT_ID", 8),
			optional(out(handlesTotal, "TOTAL_HANDLES", 4)),
			{handlesList, "HANDLES_LIST", attrOut, 4, anyLength, false}}, (*call).infoHandles},
		{objDevice, 2, "QUERY_PORT", []attrSpec{
			in(portNum, "PORT_NUM", 8),
			outStruct(portResp, "RESP", sizePortAttrExt)}, (*call).queryPortMethod},
		{objDevice, 3, "GET_CONTEXT", []attrSpec{
			optional(out(contextVectors, "NUM_COMP_VECTORS", 4)),
			optional(out(contextSupport, "CORE_SUPPORT", 8))}, (*call).getContextMethod},
		{objDevice, 4, "QUERY_CONTEXT", []attrSpec{
			optional(out(contextVectors, "NUM_COMP_VECTORS", 4)),
			optional(out(contextSupport, "CORE_SUPPORT", 8))}, (*call).queryContext},
		{objDevice, 5, "QUERY_GID_TABLE", []attrSpec{
			in(gidTableEntrySize, "ENTRY_SIZE", 8),
			inFlags(gidTableFlags, "FLAGS"),
			{gidTableEntries, "RESP_ENTRIES", attrOut, 0, anyLength, true},
			out(gidTableCount, "RESP_NUM_ENTRIES", 8)}, (*call).queryGIDTable},
		{objDevice, 6, "QUERY_GID_ENTRY", []attrSpec{
			in(gidEntryPort, "PORT", 8),
			in(gidEntryIndex, "GID_INDEX", 8),
			inFlags(gidEntryFlags, "FLAGS"),
			outStruct(gidEntryResp, "RESP_ENTRY", sizeGIDEntry)}, (*call).queryGIDEntry},
		{objPD, 0, "DESTROY", []attrSpec{object(destroyHandle, "HANDLE")}, destroyMethod[*pdObject]},
		{objCQ, 0, "CREATE", []attrSpec{
			newObject(cqHandle, "HANDLE"),
			in(cqCQE, "CQE", 4),
			in(cqUserHandle, "USER_HANDLE", 8),
			optional(fd(cqCompChannel, "COMP_CHANNEL")),
			in(cqCompVector, "COMP_VECTOR", 4),
			inFlags(cqFlags, "FLAGS"),
			out(cqRespCQE, "RESP_CQE", 4),
			optional(fd(cqEventFD, "EVENT_FD"))}, (*call).createCQMethod},
		{objCQ, 1, "DESTROY", []attrSpec{
			object(destroyHandle, "HANDLE"),
			outStruct(destroyResp, "RESP", 8)}, (*call).destroyCQMethod},
		{objQP, 0, "CREATE", []attrSpec{
			newObject(qpHandle, "HANDLE"),
			optional(object(qpXRCD, "XRCD_HANDLE")),
			optional(object(qpPD, "PD_HANDLE")),
			optional(object(qpSRQ, "SRQ_HANDLE")),
			optional(object(qpSendCQ, "SEND_CQ_HANDLE")),
			optional(object(qpRecvCQ, "RECV_CQ_HANDLE")),
			optional(object(qpIndTable, "IND_TABLE_HANDLE")),
			in(qpUserHandle, "USER_HANDLE", 8),
			in(qpCap, "CAP", sizeQPCap),
			in(qpType, "TYPE", 8),
			inFlags(qpFlags, "FLAGS"),
			optional(in(qpSourceQPN, "SOURCE_QPN", 4)),
			optional(fd(qpEventFD, "EVENT_FD")),
			out(qpRespCap, "RESP_CAP", sizeQPCap),
			out(qpRespNum, "RESP_QP_NUM", 4)}, (*call).createQPMethod},
		{objQP, 1, "DESTROY", []attrSpec{
			object(destroyHandle, "HANDLE"),
			out(destroyResp, "RESP", 4)}, (*call).destroyQPMethod},
		{objSRQ, 0, "CREATE", []attrSpec{
			newObject(srqHandle, "HANDLE"),
			optional(object(srqPD, "PD_HANDLE")),
			optional(object(srqXRCD, "XRCD_HANDLE")),
			optional(object(srqCQ, "CQ_HANDLE")),
			in(srqUserHandle, "USER_HANDLE", 8),
			in(srqMaxWR, "MAX_WR", 4),
			in(srqMaxSGE, "MAX_SGE", 4),
			in(srqLimit, "LIMIT", 4),
			optional(in(srqMaxTags, "MAX_NUM_TAGS", 4)),
			in(srqType, "TYPE", 8),
			optional(fd(srqEventFD, "EVENT_FD")),
			out(srqRespMaxWR, "RESP_MAX_WR", 4),
			out(srqRespMaxSGE, "RESP_MAX_SGE", 4),
			optional(out(srqRespNum, "RESP_SRQ_NUM", 4))}, (*call).createSRQMethod},
		{objSRQ, 1, "DESTROY", []attrSpec{
			object(destroyHandle, "HANDLE"),
			out(destroyResp, "RESP", 4)}, (*call).destroySRQMethod},
		{objAH, 0, "DESTROY", []attrSpec{object(destroyHandle, "HANDLE")}, destroyMethod[*ahObject]},
		{objMR, 1, "DESTROY", []attrSpec{object(destroyHandle, "HANDLE")}, destroyMethod[*mrObject]},
		{objMW, 0, "DESTROY", []attrSpec{object(destroyHandle, "HANDLE")}, destroyMethod[*mwObject]},
		{objMR, 3, "QUERY", []attrSpec{
			object(mrHandle, "HANDLE"),
			out(mrRespLKey, "RESP_LKEY", 4),
			out(mrRespRKey, "RESP_RKEY", 4),
			out(mrRespLength, "RESP_LENGTH", 8),
			optional(out(mrRespIOVA, "RESP_IOVA", 8))}, (*call).queryMR},
		{objMR, 2, "ADVISE", []attrSpec{
			object(advisePD, "PD_HANDLE"),
			in(adviseAdvice, "ADVICE", 8),
			{adviseFlags, "FLAGS", attrIn, 4, 8, true},
			{adviseList, "SGE_LIST", attrIn, sizeSGE, anyLength, true}}, (*call).adviseMR},
		{objMR, 4, "REG_DMABUF", []attrSpec{
			newObject(dmabufHandle, "HANDLE"),
			object(dmabufPD, "PD_HANDLE"),
			in(2, "OFFSET", 8),
			in(3, "LENGTH", 8),
			in(4, "IOVA", 8),
			in(5, "FD", 4),
			inFlags(6, "ACCESS_FLAGS"),
			out(7, "RESP_LKEY", 4),
			out(dmabufRespRKey, "RESP_RKEY", 4)}, (*call).regDmabufMR},
		{objAsyncEvent, 0, "ALLOC", []attrSpec{newFD(0, "HANDLE")}, (*call).allocAsyncEvent},
	} {
		m.attrs = append(m.attrs, providerPart...)
		methods[uint32(m.object)<<16|uint32(m.method)] = &m
	}
}
