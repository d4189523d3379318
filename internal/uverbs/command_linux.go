package uverbs

import "syscall"

// command is one command of the write() ABI, and of the method INVOKE_WRITE.
type command struct {
	num       uint32
	name      string
	req, resp int                       // least bytes of request (without headers) and answer
	run       func(*call) syscall.Errno // nil: EOPNOTSUPP
}

// commands is the table of commands. Sizes are those of rdma/ib_user_verbs.h; of extended commands
// only the fields that every version has count, as in the kernel.
var commands map[uint32]*command

func init() {
	commands = map[uint32]*command{}
	for _, c := range [...]command{
		{cmdGetContext, "GET_CONTEXT", 8, 8, (*call).getContext},
		{cmdQueryDevice, "QUERY_DEVICE", 8, sizeDeviceAttr, (*call).queryDevice},
		{cmdQueryPort, "QUERY_PORT", 16, sizePortAttr, (*call).queryPort},
		{cmdAllocPD, "ALLOC_PD", 8, 4, (*call).allocPD},
		{cmdDeallocPD, "DEALLOC_PD", 4, 0, destroyCommand[*pdObject]},
		{cmdCreateAH, "CREATE_AH", 56, 4, (*call).createAH},
		{cmdDestroyAH, "DESTROY_AH", 4, 0, destroyCommand[*ahObject]},
		{cmdRegMR, "REG_MR", 40, 12, (*call).regMR},
		{cmdReregMR, "REREG_MR", 48, 8, (*call).reregMR},
		{cmdDeregMR, "DEREG_MR", 4, 0, destroyCommand[*mrObject]},
		{cmdAllocMW, "ALLOC_MW", 16, 8, (*call).allocMW},
		{cmdDeallocMW, "DEALLOC_MW", 4, 0, destroyCommand[*mwObject]},
		{cmdCreateCompChannel, "CREATE_COMP_CHANNEL", 8, 4, (*call).createCompChannel},
		{cmdCreateCQ, "CREATE_CQ", 32, 8, (*call).createCQCommand},
		{cmdResizeCQ, "RESIZE_CQ", 16, 8, (*call).resizeCQ},
		{cmdDestroyCQ, "DESTROY_CQ", 16, 8, (*call).destroyCQCommand},
		{cmdPollCQ, "POLL_CQ", 16, 8, nil},
		{cmdReqNotifyCQ, "REQ_NOTIFY_CQ", 8, 0, (*call).reqNotifyCQ},
		{cmdCreateQP, "CREATE_QP", sizeCreateQP, 32, (*call).createQPCommand},
		{cmdQueryQP, "QUERY_QP", 16, sizeQPAttr, (*call).queryQP},
		{cmdModifyQP, "MODIFY_QP", sizeModifyQP, 0, (*call).modifyQPCommand},
		{cmdDestroyQP, "DESTROY_QP", 16, 4, (*call).destroyQPCommand},
		{cmdPostSend, "POST_SEND", 24, 4, (*call).postSend},
		{cmdPostRecv, "POST_RECV", 24, 4, nil},
		{cmdAttachMcast, "ATTACH_MCAST", 24, 0, (*call).attachMcast},
		{cmdDetachMcast, "DETACH_MCAST", 24, 0, (*call).detachMcast},
		{cmdCreateSRQ, "CREATE_SRQ", 32, 16, (*call).createSRQCommand},
		{cmdModifySRQ, "MODIFY_SRQ", 16, 0, (*call).modifySRQ},
		{cmdQuerySRQ, "QUERY_SRQ", 16, 16, (*call).querySRQ},
		{cmdDestroySRQ, "DESTROY_SRQ", 16, 4, (*call).destroySRQCommand},
		{cmdPostSRQRecv, "POST_SRQ_RECV", 24, 4, nil},
		{cmdOpenXRCD, "OPEN_XRCD", 16, 4, nil},
		{cmdCloseXRCD, "CLOSE_XRCD", 4, 0, nil},
		{cmdCreateXSRQ, "CREATE_XSRQ", 48, 16, nil},
		{cmdOpenQP, "OPEN_QP", 32, 32, nil},

		{exQueryDevice, "EX_QUERY_DEVICE", 8, 184, (*call).queryDeviceExt},
		{exCreateCQ, "EX_CREATE_CQ", 32, 16, (*call).createCQExt},
		{exCreateQP, "EX_CREATE_QP", 52, 40, (*call).createQPExt},
		{exModifyQP, "EX_MODIFY_QP", sizeModifyQP, 0, (*call).modifyQPExt},
		{exCreateFlow, "EX_CREATE_FLOW", 24, 8, nil},
		{exDestroyFlow, "EX_DESTROY_FLOW", 8, 0, nil},
		{exCreateWQ, "EX_CREATE_WQ", 40, 24, nil},
		{exModifyWQ, "EX_MODIFY_WQ", 16, 0, nil},
		{exDestroyWQ, "EX_DESTROY_WQ", 8, 8, nil},
		{exCreateRWQIndTbl, "EX_CREATE_RWQ_IND_TBL", 8, 16, nil},
		{exDestroyRWQIndTbl, "EX_DESTROY_RWQ_IND_TBL", 8, 0, nil},
		{exModifyCQ, "EX_MODIFY_CQ", 12, 0, (*call).modifyCQ},
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
	w.resp = span{addr, outWords * 8}
	w.uhwResp = span{addr + uint64(outWords)*8, provOut * 8}
	return 0
}
