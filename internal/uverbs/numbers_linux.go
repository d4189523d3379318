package uverbs

import (
	"encoding/binary"
	"fmt"
)

var le = binary.LittleEndian

// driverRXE is RDMA_DRIVER_RXE, which clients of the rxe provider send in every ioctl.
const driverRXE = 14

// ABI versions: of the verbs class (IB_USER_VERBS_ABI_VERSION), and of the rxe provider
// (RXE_UVERBS_ABI_VERSION).
const (
	classABI    = 6
	providerABI = 2
)

// Objects (enum uverbs_default_objects).
const (
	objDevice     = 0
	objPD         = 1
	objCQ         = 3
	objQP         = 4
	objSRQ        = 5
	objAH         = 6
	objMR         = 7
	objMW         = 8
	objAsyncEvent = 16
)

var objectNames = [...]string{"DEVICE", "PD", "COMP_CHANNEL", "CQ", "QP", "SRQ", "AH", "MR", "MW", "FLOW", "XRCD",
	"RWQ_IND_TBL", "WQ", "FLOW_ACTION", "DM", "COUNTERS", "ASYNC_EVENT"}

func objectName(o uint16) string {
	if int(o) < len(objectNames) {
		return objectNames[o]
	}
	return fmt.Sprintf("OBJECT_%d", o)
}

// Attribute ids that every method has (UVERBS_ATTR_UHW_*): the provider's part.
const (
	attrUHWIn  = 0x1000
	attrUHWOut = 0x1001
)

// Attribute flags.
const (
	flagMandatory   = 1 // UVERBS_ATTR_F_MANDATORY, the client's
	flagValidOutput = 2 // UVERBS_ATTR_F_VALID_OUTPUT, ours
)

// commandExtended is IB_USER_VERBS_CMD_FLAG_EXTENDED, commandMask IB_USER_VERBS_CMD_COMMAND_MASK.
const (
	commandExtended = 0x80000000
	commandMask     = 0xff
)

// Commands (enum ib_uverbs_write_cmds).
const (
	cmdGetContext        = 0
	cmdQueryDevice       = 1
	cmdQueryPort         = 2
	cmdAllocPD           = 3
	cmdDeallocPD         = 4
	cmdCreateAH          = 5
	cmdDestroyAH         = 8
	cmdRegMR             = 9
	cmdReregMR           = 11
	cmdDeregMR           = 13
	cmdAllocMW           = 14
	cmdDeallocMW         = 16
	cmdCreateCompChannel = 17
	cmdCreateCQ          = 18
	cmdResizeCQ          = 19
	cmdDestroyCQ         = 20
	cmdPollCQ            = 21
	cmdReqNotifyCQ       = 23
	cmdCreateQP          = 24
	cmdQueryQP           = 25
	cmdModifyQP          = 26
	cmdDestroyQP         = 27
	cmdPostSend          = 28
	cmdPostRecv          = 29
	cmdAttachMcast       = 30
	cmdDetachMcast       = 31
	cmdCreateSRQ         = 32
	cmdModifySRQ         = 33
	cmdQuerySRQ          = 34
	cmdDestroySRQ        = 35
	cmdPostSRQRecv       = 36
	cmdOpenXRCD          = 37
	cmdCloseXRCD         = 38
	cmdCreateXSRQ        = 39
	cmdOpenQP            = 40
	lastCommand          = 40

	exQueryDevice      = 1 | commandExtended
	exCreateCQ         = 18 | commandExtended
	exCreateQP         = 24 | commandExtended
	exModifyQP         = 26 | commandExtended
	exCreateFlow       = 50 | commandExtended
	exDestroyFlow      = 51 | commandExtended
	exCreateWQ         = 52 | commandExtended
	exModifyWQ         = 53 | commandExtended
	exDestroyWQ        = 54 | commandExtended
	exCreateRWQIndTbl  = 55 | commandExtended
	exDestroyRWQIndTbl = 56 | commandExtended
	exModifyCQ         = 57 | commandExtended
)
