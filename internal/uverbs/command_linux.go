package uverbs

import "syscall"

// command is one command of the write() ABI, and of the method INVOKE_WRITE.
type command struct {
	num       uint32
	name      string
	req, resp int                       // least bytes of request (without headers) and answer
	run       func(*call) syscall.Errno // nil: EOPNOTSUPP
	full      int                       // bytes of the request that have a meaning, where that is more than req
	provider  bool                      // the provider may have a part in the request
}

// excess checks what a request has beyond what is known: zeros only, or it asks for something that is not there
// (uverbs_request of the kernel's drivers/infiniband/core/uverbs_cmd.c).
func (c *command) excess(req []byte) syscall.Errno {
	for _, b := range req[min(len(req), max(c.req, c.full)):] {
		if b != 0 {
			return syscall.EOPNOTSUPP
		}
	}
	return 0
}

// commands is the table of commands. Sizes are those of rdma/ib_user_verbs.h; of extended commands
// only the fields that every version has count, as in the kernel.
var commands map[uint32]*command

func init() {
	commands = map[uint32]*command{}
	for _, c := range [...]command{
		{cmdGetContext, "GET_CONTEXT", 8, 8, (*call).getContext, 0, true},
		{cmdQueryDevice, "QUERY_DEVICE", 8, sizeDeviceAttr, (*call).queryDevice, 0, false},
		{cmdQueryPort, "QUERY_PORT", 16, sizePortAttr, (*call).queryPort, 0, false},
		{cmdAllocPD, "ALLOC_PD", 8, 4, (*call).allocPD, 0, true},
		{cmdDeallocPD, "DEALLOC_PD", 4, 0, destroyCommand[*pdObject], 0, false},
		{cmdCreateAH, "CREATE_AH", 56, 4, (*call).createAH, 0, true},
		{cmdDestroyAH, "DESTROY_AH", 4, 0, destroyCommand[*ahObject], 0, false},
		{cmdRegMR, "REG_MR", 40, 12, (*call).regMR, 0, true},
		{cmdReregMR, "REREG_MR", 48, 8, (*call).reregMR, 0, true},
		{cmdDeregMR, "DEREG_MR", 4, 0, destroyCommand[*mrObject], 0, false},
		{cmdAllocMW, "ALLOC_MW", 16, 8, (*call).allocMW, 0, true},
		{cmdDeallocMW, "DEALLOC_MW", 4, 0, destroyCommand[*mwObject], 0, false},
		{cmdCreateCompChannel, "CREATE_COMP_CHANNEL", 8, 4, (*call).createCompChannel, 0, false},
		{cmdCreateCQ, "CREATE_CQ", 32, 8, (*call).createCQCommand, 0, true},
		{cmdResizeCQ, "RESIZE_CQ", 16, 8, (*call).resizeCQ, 0, true},
		{cmdDestroyCQ, "DESTROY_CQ", 16, 8, (*call).destroyCQCommand, 0, false},
		{cmdPollCQ, "POLL_CQ", 16, 8, nil, 0, false},
		{cmdReqNotifyCQ, "REQ_NOTIFY_CQ", 8, 0, (*call).reqNotifyCQ, 0, false},
		{cmdCreateQP, "CREATE_QP", sizeCreateQP, 32, (*call).createQPCommand, 0, true},
		{cmdQueryQP, "QUERY_QP", 16, sizeQPAttr, (*call).queryQP, 0, false},
		{cmdModifyQP, "MODIFY_QP", sizeModifyQP, 0, (*call).modifyQPCommand, 0, false},
		{cmdDestroyQP, "DESTROY_QP", 16, 4, (*call).destroyQPCommand, 0, false},
		{cmdPostSend, "POST_SEND", 24, 4, (*call).postSend, 0, false},
		{cmdPostRecv, "POST_RECV", 24, 4, nil, 0, false},
		{cmdAttachMcast, "ATTACH_MCAST", 24, 0, (*call).attachMcast, 0, false},
		{cmdDetachMcast, "DETACH_MCAST", 24, 0, (*call).detachMcast, 0, false},
		{cmdCreateSRQ, "CREATE_SRQ", 32, 16, (*call).createSRQCommand, 0, true},
		{cmdModifySRQ, "MODIFY_SRQ", 16, 0, (*call).modifySRQ, 0, true},
		{cmdQuerySRQ, "QUERY_SRQ", 16, 16, (*call).querySRQ, 0, false},
		{cmdDestroySRQ, "DESTROY_SRQ", 16, 4, (*call).destroySRQCommand, 0, false},
		{cmdPostSRQRecv, "POST_SRQ_RECV", 24, 4, nil, 0, false},
		{cmdOpenXRCD, "OPEN_XRCD", 16, 4, nil, 0, true},
		{cmdCloseXRCD, "CLOSE_XRCD", 4, 0, nil, 0, false},
		{cmdCreateXSRQ, "CREATE_XSRQ", 48, 16, nil, 0, true},
		{cmdOpenQP, "OPEN_QP", 32, 32, nil, 0, true},

		{exQueryDevice, "EX_QUERY_DEVICE", 8, 184, (*call).queryDeviceExt, 0, true},
		{exCreateCQ, "EX_CREATE_CQ", 32, 16, (*call).createCQExt, 0, true},
		{exCreateQP, "EX_CREATE_QP", 52, 40, (*call).createQPExt, sizeCreateQPExt, true},
		{exModifyQP, "EX_MODIFY_QP", sizeModifyQP, 0, (*call).modifyQPExt, sizeModifyQPExt, true},
		{exCreateFlow, "EX_CREATE_FLOW", 24, 8, nil, 0, true},
		{exDestroyFlow, "EX_DESTROY_FLOW", 8, 0, nil, 0, false},
		{exCreateWQ, "EX_CREATE_WQ", 40, 24, nil, 0, true},
		{exModifyWQ, "EX_MODIFY_WQ", 16, 0, nil, 0, true},
		{exDestroyWQ, "EX_DESTROY_WQ", 8, 8, nil, 0, true},
		{exCreateRWQIndTbl, "EX_CREATE_RWQ_IND_TBL", 8, 16, nil, 0, true},
		{exDestroyRWQIndTbl, "EX_DESTROY_RWQ_IND_TBL", 8, 0, nil, 0, false},
		{exModifyCQ, "EX_MODIFY_CQ", 12, 0, (*call).modifyCQ, sizeModifyCQ, false},
	} {
		commands[c.num] = &c
	}
}

// lookup finds a command, with the kernel's errors for those that there are not.
func lookup(num uint32) (*command, syscall.Errno) {
	if num&^(commandExtended|commandMask) != 0 {
		return nil, syscall.EINVAL
	}
	if c := commands[num]; c != nil {
		return c, 0
	}
	if num&commandExtended == 0 && num > lastCommand {
		return nil, syscall.EINVAL
	}
	return nil, syscall.EOPNOTSUPP
}

// written is a command as write() carries it, taken apart.
type written struct {
	cmd      *command
	req, uhw []byte // the core's and the provider's part of the request
	resp     span   // where the answers go
	uhwResp  span
}

// span is a piece of the caller's memory.
type span struct {
	addr uint64
	len  int
}

// maxWrite bounds a written command in bytes: the word counts are 16 bits wide.
const maxWrite = sizeCmdHdr + sizeExCmdHdr + 2*8*0xffff

// shortDestroyCQ is the length with which rdma-core 18 and 19 write DESTROY_CQ, whose 24 bytes the
// kernel reads all the same.
const shortDestroyCQ = 16

// isShortDestroyCQ tells whether b is that; destroyCQSize is what to read instead.
func isShortDestroyCQ(b []byte) bool { return len(b) == shortDestroyCQ && le.Uint32(b) == cmdDestroyCQ }

const destroyCQSize = sizeCmdHdr + 16

// decodeWrite takes apart what was written: struct ib_uverbs_cmd_hdr, for extended commands struct
// ib_uverbs_ex_cmd_hdr, the request and the provider's part. Words are 4 bytes and count the header;
// of extended commands 8 bytes, without headers.
func decodeWrite(b []byte) (w written, errno syscall.Errno) {
	if len(b) < sizeCmdHdr {
		return w, syscall.EINVAL
	}
	cmd, errno := lookup(le.Uint32(b))
	if errno != 0 {
		return w, errno
	}
	w.cmd = cmd
	if cmd.run == nil {
		return w, syscall.EOPNOTSUPP
	}
	inWords, outWords := int(le.Uint16(b[4:])), int(le.Uint16(b[6:]))
	if cmd.num&commandExtended != 0 {
		return w, w.decodeExt(b, inWords, outWords)
	}
	if inWords*4 != len(b) {
		return w, syscall.EINVAL
	}
	body := b[sizeCmdHdr:]
	if len(body) < cmd.req || outWords*4 < cmd.resp {
		return w, syscall.ENOSPC
	}
	w.req, w.uhw = body[:cmd.req], body[cmd.req:]
	if !cmd.provider && cmd.num != cmdPostSend {
		if errno := cmd.excess(body); errno != 0 {
			return w, errno
		}
		w.uhw = nil
	}
	if cmd.resp > 0 {
		addr := le.Uint64(body)
		w.resp = span{addr, cmd.resp}
		w.uhwResp = span{addr + uint64(cmd.resp), outWords*4 - cmd.resp}
	}
	return w, 0
}

func (w *written) decodeExt(b []byte, inWords, outWords int) syscall.Errno {
	if len(b) < sizeCmdHdr+sizeExCmdHdr {
		return syscall.EINVAL
	}
	x, body := b[sizeCmdHdr:], b[sizeCmdHdr+sizeExCmdHdr:]
	addr, provIn, provOut := le.Uint64(x), int(le.Uint16(x[8:])), int(le.Uint16(x[10:]))
	switch {
	case (inWords+provIn)*8 != len(body):
		return syscall.EINVAL
	case inWords*8 < w.cmd.req:
		return syscall.ENOSPC
	case le.Uint32(x[12:]) != 0:
		return syscall.EINVAL
	case (addr == 0) != (outWords == 0 && provOut == 0):
		return syscall.EINVAL
	case addr != 0 && outWords*8 < w.cmd.resp:
		return syscall.ENOSPC
	}
	w.req, w.uhw = body[:inWords*8], body[inWords*8:]
	if errno := w.cmd.excess(w.req); errno != 0 {
		return errno
	}
	w.resp = span{addr, outWords * 8}
	w.uhwResp = span{addr + uint64(outWords)*8, provOut * 8}
	return 0
}
