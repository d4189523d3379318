package audit

// A row is where a verb, an operation or an event of package verbs is shown, simulated and tested.
type row struct {
	verb string // as Go names it: "QP.PostSend" is method PostSend of QP

	// example is a testable example of package verbs that uses it, by itself or by the examples' helpers.
	example string

	// scenario is where the simulator does it, under every fault that it has:
	//   - "posts: x": the programs post x (sim.OpNames), and TestCleanSeeds asks for it;
	//   - "meets: X": packets X meet each fault of the links, as TestCoverage asks;
	//   - "counts: X": TestCleanSeeds asks for the counter X;
	//   - "f: X": function f of internal/sim uses X of the core.
	scenario string

	// test is a test, "package:name", whose comment cites clause: of InfiniBand vol. 1, of its annexes, or, where
	// they have nothing of it, of a header.
	test, clause string
}

// Reasons for which a column has nothing: "none: why".
const (
	ownMemory = "none: tells what the program's own side holds; nothing of it reaches the NIC or a peer"
	goOnly    = "none: of this NIC in software; neither the specification nor the kernel's ABI has it"
	allRun    = "none: what a simulated program makes lives as long as its run; TestLivesInAnyOrder of internal/nic ends objects in any order"
	readsBack = "none: reads back and changes nothing; simulated programs look at states, events and completions instead"
	commands  = "none: for this module's commands, which configure devices and memory themselves"
)

const (
	core   = "internal/nic:"
	dev    = "internal/device:"
	public = "verbs:"
)

var table = []row{
	// The device.
	{"NewDevice", "ExampleNewDevice", "world.addHost: New", dev + "TestCaptureIsReadable", "A17.3.2.2"},
	{"Device.Open", "ExampleNewDevice", allRun, dev + "TestContextCloseFreesEverything", "11.2.1.4"},
	{"Device.Close", "ExampleNewDevice", allRun, dev + "TestContextCloseFreesEverything", "11.2.1.4"},
	{"Device.GIDs", "ExampleNewDevice", "world.addHost: SetGID", dev + "TestEveryAdvertisedGIDWorks", "A17.4.1.1"},
	{"Device.Limits", "ExampleDevice_Progress", "none: simulated programs stay within the limits", public + "TestLimits", "11.2.1.2"},
	{"Device.MTU", "ExampleNewDevice", "world.addHost: MTU", "internal/netdev:TestPathMTU", "A17"},
	{"Device.Now", "ExampleWC_time", "none: simulated time is the test's own", core + "TestCompletionTimes", "rdma/ib_user_verbs.h"},
	{"Device.PortActive", "ExampleContext_Events_port", "host.usable: down", dev + "TestTransferOutlivesALinkThatComesBack", "11.6.3"},
	{"Device.Units", "ExampleQP_MoveTo", "host.addUnits: Units", public + "TestPlacement", "rdma/ib_user_verbs.h"},
	{"Device.Progress", "ExampleDevice_Progress", "unit.drive: transmit", goOnly, ""},
	{"Device.Stats", "ExampleDeviceConfig_congestion", "world.countNIC: Stats", goOnly, ""},
	{"Wrap", commands, commands, commands, ""},
	{"Device.Unwrap", commands, commands, commands, ""},

	// Contexts, protection domains, memory.
	{"Context.AllocPD", "ExampleContext_AllocPD", "world.addHost: AllocPD", core + "TestPDInUse", "11.2.1.6"},
	{"Context.Close", "ExampleNewDevice", allRun, dev + "TestContextCloseFreesEverything", "11.2.1.4"},
	{"Context.Device", "ExampleDevice_Progress", ownMemory, ownMemory, ""},
	{"Context.Events", "ExampleContext_Events", "host.event: Type", dev + "TestEventsReachTheirSink", "11.6.3"},
	{"PD.Close", "ExampleContext_AllocPD", allRun, core + "TestPDInUse", "11.2.1.6"},
	{"PD.Context", "ExampleContext_AllocPD", ownMemory, ownMemory, ""},
	{"PD.RegMR", "ExamplePD_RegMR", "world.register: RegMR", core + "TestRegMRArguments", "11.2, Register Memory Region"},
	{"PD.AllocMR", "ExamplePD_AllocMR", "world.register: RegMR", core + "TestRegMRArguments", "11.2, Register Memory Region"},
	{"PD.RegSpace", commands, commands, commands, ""},
	{"MR.Close", "ExamplePD_RegMR", "world.deregister: Dereg", core + "TestRegMRLimitAndDereg", "11.2, Deregister Memory Region"},
	{"MR.Rereg", "ExampleMR_Rereg", "counts: Reregistered", core + "TestReregister", "11.2, Reregister Memory Region"},
	{"MR.LKey", "ExampleDevice_Progress", "seg.key: LKey", core + "TestMRKeysAreFresh", "10.6.3.3"},
	{"MR.RKey", "ExampleQP_PostSend_write", "world.target: rkey", core + "TestRemoteAccessErrors", "10.6.3"},
	{"MR.Addr", "ExampleQP_PostSend_write", "seg.addr: iova", core + "TestMRBounds", "10.6.3.1"},
	{"MR.Bytes", "ExamplePD_AllocMR", ownMemory, ownMemory, ""},
	{"MR.SGE", "ExampleQP_PostSend_scatterGather", "world.post: copyEntries", core + "TestScatterGather32", "11.4.1.1"},
	{"MR.Slice", "ExampleQP_PostSend", "world.post: copyEntries", core + "TestScatterGather32", "11.4.1.1"},

	// Memory windows.
	{"PD.AllocMW", "ExamplePD_AllocMW", "world.addWindows: AllocMW", core + "TestAllocMWArguments", "11.2, Allocate Memory Window"},
	{"MW.Close", "ExampleQP_BindMW", "world.dropWindows: Dealloc", core + "TestLivesOfWindows", "11.2, Deallocate Memory Window"},
	{"MW.RKey", "ExamplePD_AllocMW", "world.bindWork: key", core + "TestWindowGrants", "10.6.7"},
	{"NextRKey", "ExampleNextRKey", "world.bindWork: key", core + "TestWindowGrants", "10.6.3.3"},
	{"QP.BindMW", "ExampleQP_BindMW", "posts: bind", core + "TestRebind", "11.2, Bind Memory Window"},
	{"OpBindMW", "ExamplePD_AllocMW", "posts: bind", core + "TestBindErrors", "C10-72"},
	{"OpLocalInv", "ExampleNextRKey", "posts: local invalidate", core + "TestInvalidate", "10.6.5"},
	{"OpSendInv", "ExamplePD_AllocMW", "posts: send with invalidate", core + "TestInvalidate", "9.4.1.1.3"},

	// Completion queues.
	{"Context.CreateCQ", "ExampleCQ_Poll", "world.addCQ: CreateCQ", core + "TestCreateCQArguments", "11.2, Create Completion Queue"},
	{"Context.CreateCQOnVector", "ExampleQP_MoveTo", "host.anyUnit: units", public + "TestPlacement", "rdma/ib_user_verbs.h"},
	{"CQ.Close", "ExampleCQ_Close", allRun, core + "TestCQInUse", "11.2, Destroy Completion Queue"},
	{"CQ.Cap", "ExampleCQ_Resize", ownMemory, ownMemory, ""},
	{"CQ.Resize", "ExampleCQ_Resize", "world.resizeCQ: Resize", core + "TestCompletionQueueResize", "11.2, Resize Completion Queue"},
	{"CQ.Moderate", "ExampleCQ_Moderate", "world.moderate: Moderate", core + "TestModeration", "rdma/ib_user_verbs.h"},
	{"CQ.Moderation", "ExampleCQ_Moderate", ownMemory, ownMemory, ""},
	{"CQ.Poll", "ExampleCQ_Poll", "host.look: LoadCQE", core + "TestCompletionIsPublished", "11.4.2.1"},
	{"CQ.Next", "ExampleNewDevice_network", "host.look: LoadCQE", core + "TestCompletionIsPublished", "11.4.2.1"},
	{"CQ.Wait", "ExampleCQ_Wait", "cqueue.arm: Arm", core + "TestCompletionNotification", "11.4.2.2"},
	{"CQ.WaitSolicited", "ExampleCQ_WaitSolicited", "cqueue.arm: armedSolicited", core + "TestSolicited", "11.4.2.2"},
	{"WC.Err", "ExampleWC_Err", "world.judge: StatusRetryExcErr", public + "TestErrorsOfCompletions", "11.6.2"},
	{"Status.Error", "none: what WC.Err and printing call", "world.judge: StatusRetryExcErr", public + "TestErrorsOfCompletions", "11.6.2"},
	{"Status.String", "none: what WC.Err and printing call", "world.judge: StatusRetryExcErr", public + "TestErrorsOfCompletions", "11.6.2"},

	// Queue pairs.
	{"PD.CreateQP", "ExampleQP_Connect", "world.addQP: CreateQP", core + "TestCreateQPArguments", "11.2.5.1"},
	{"QP.Close", "ExamplePD_CreateSRQ", "world.plan: Destroy", core + "TestQPLimitAndDestroy", "11.2.5.4"},
	{"QP.Num", "ExampleQP_Connect", "world.addQP: Num", core + "TestQueuePairNumbers", "9.2"},
	{"QP.Info", "ExampleQP_Info", readsBack, core + "TestQueryAfterCreate", "11.2.5.3"},
	{"QP.Init", "ExampleQP_Init", "world.connect: Init", core + "TestModifyMasks", "11.2.5.2"},
	{"QP.Local", "ExampleQP_Connect", "world.negotiate: SQPSN", dev + "TestEveryAdvertisedGIDWorks", "A17.4.1.1"},
	{"QP.Connect", "ExampleQP_Connect", "world.connect: toRTR", core + "TestModifyMasks", "10.3.1"},
	{"QP.Activate", "ExamplePD_CreateAH", "world.startDatagrams: RTS", core + "TestModifyMasks", "10.3.1"},
	{"QP.Modify", "ExampleQP_Modify", "world.modify: Modify", core + "TestModifyMasks", "11.2.5.2"},
	{"QP.Query", "ExampleQP_Query", readsBack, core + "TestQueryGivesWhatModifySet", "11.2.5.3"},
	{"QP.SelectiveRepeat", "ExampleQP_SelectiveRepeat", "counts: Selective", core + "TestStandardPeersNeverSeeIt", "9.7.5.1.1"},
	{"QP.Unit", "ExampleQP_MoveTo", "counts: Moves", public + "TestUnitsShareQueues", "9.7.1"},
	{"QP.MoveTo", "ExampleQP_MoveTo", "counts: Moves", public + "TestUnitsShareQueues", "9.7.1"},

	// Work requests.
	{"QP.PostSend", "ExampleQP_PostSend", "world.post: StoreSend", core + "TestEveryOperationMovesItsData", "11.4.1.1"},
	{"QP.PostRecv", "ExampleQP_PostRecv", "world.postReceive: StoreRecv", core + "TestReceiveOrder", "11.4.1.2"},
	{"OpSend", "ExampleQP_PostSend", "meets: RC SEND", core + "TestPacketsOfSendsAndWrites", "9.4.1"},
	{"OpSendImm", "ExampleQP_PostSend_sendWithImmediate", "meets: RC SEND imm", core + "TestPacketsOfSendsAndWrites", "9.4.1"},
	{"OpWrite", "ExampleQP_PostSend_write", "meets: RC WRITE", core + "TestPacketsOfSendsAndWrites", "9.4.3"},
	{"OpWriteImm", "ExampleQP_PostSend_writeWithImmediate", "meets: RC WRITE imm", core + "TestPacketsOfSendsAndWrites", "9.4.3"},
	{"OpRead", "ExampleQP_PostSend_read", "meets: RC READ", core + "TestPacketsOfReads", "9.4.4"},
	{"OpCompareSwap", "ExampleQP_PostSend_compareAndSwap", "meets: RC COMPARE SWAP", core + "TestPacketsOfAtomics", "9.4.5"},
	{"OpFetchAdd", "ExampleQP_PostSend_fetchAndAdd", "meets: RC FETCH ADD", core + "TestPacketsOfAtomics", "9.4.5"},
	{"OpAtomicWrite", "ExampleFlush", "meets: RC ATOMIC WRITE", core + "TestAtomicWrite", "A19.4.2"},
	{"OpFlush", "ExampleFlush", "meets: RC FLUSH", core + "TestFlushOperation", "A19.4.1"},

	// Datagrams and multicast.
	{"PD.CreateAH", "ExamplePD_CreateAH", "world.addressHandle: CreateAH", core + "TestAddressHandles", "11.2.2"},
	{"PD.AHTo", "ExampleQP_AttachMulticast", "world.groupHandle: CreateAH", core + "TestUDDatagram", "9.8.3"},
	{"AH.Close", "ExamplePD_CreateAH", allRun, core + "TestAddressHandles", "11.2.2"},
	{"GIDOf", "ExampleQP_AttachMulticast", "gidOf: GIDFromAddr", dev + "TestEveryAdvertisedGIDWorks", "A17.4.1.1"},
	{"QP.AttachMulticast", "ExampleQP_AttachMulticast", "world.attach: AttachMulticast", core + "TestMulticastRefusals", "11.3.1"},
	{"QP.DetachMulticast", "ExampleQP_AttachMulticast", "world.detach: DetachMulticast", core + "TestMulticastMembership", "11.3.2"},

	// Shared receive queues and XRC.
	{"PD.CreateSRQ", "ExamplePD_CreateSRQ", "world.addShared: CreateSRQ", core + "TestSharedQueueLife", "11.2, Create and Destroy Shared Receive Queue"},
	{"SRQ.Close", "ExamplePD_CreateSRQ", allRun, core + "TestSharedQueueLife", "11.2, Create and Destroy Shared Receive Queue"},
	{"SRQ.PostRecv", "ExampleSRQ_PostRecv", "counts: SharedRecvs", core + "TestSharedReceivesAreTakenInOrder", "10.2.9"},
	{"SRQ.Arm", "ExampleSRQ_Arm", "world.armLimit: Modify", core + "TestSharedQueueLimit", "11.2, Modify Shared Receive Queue"},
	{"SRQ.Resize", "ExampleSRQ_Resize", "world.resizeShared: Modify", core + "TestSharedQueueResize", "11.2, Modify Shared Receive Queue"},
	{"SRQ.Query", "ExampleSRQ_Query", "world.looked: Query", core + "TestSharedQueueLimit", "11.2, Modify Shared Receive Queue"},
	{"SRQ.Num", "ExampleXRCD_CreateTarget", "world.postXRC: RemoteSRQ", core + "TestXRCOperations", "A14"},
	{"Context.AllocXRCD", "ExampleXRCD_CreateTarget", "world.addXRC: AllocXRCD", core + "TestXRCObjects", "A14"},
	{"XRCD.CreateTarget", "ExampleXRCD_CreateTarget", "world.addXRCSender: XRCTGT", core + "TestXRCOperations", "A14"},
	{"XRCD.Close", "ExampleXRCD_CreateTarget", allRun, core + "TestXRCObjects", "A14"},

	// Asynchronous events.
	{"EventCQError", "ExampleContext_Events_port", "host.event: EventCQErr", core + "TestCompletionQueueOverflow", "11.6.3"},
	{"EventQPFatal", "ExampleContext_Events_port", "host.event: EventQPFatal", core + "TestCompletionQueueOverflow", "11.6.3"},
	{"EventQPRequestError", "ExampleContext_Events_port", "host.event: EventQPReqErr", core + "TestInvalidRequests", "11.6.3"},
	{"EventQPAccessError", "ExampleContext_Events", "host.event: EventQPAccessErr", core + "TestRemoteAccessErrors", "11.6.3"},
	{"EventConnEstablished", "ExampleContext_Events_port", "host.event: EventCommEst", core + "TestCommunicationEstablished", "11.6.3"},
	{"EventSendQueueDrained", "ExampleQP_Modify_drain", "host.event: EventSQDrained", core + "TestSendQueueDrain", "11.6.3"},
	{"EventSRQLimit", "ExampleSRQ_Arm", "counts: Limits", core + "TestSharedQueueLimit", "11.6.3"},
	{"EventLastWQE", "ExampleContext_Events_lastWQE", "host.event: EventQPLastWQE", core + "TestLastWQEReached", "11.6.3"},
	{"EventPathMigrated", "ExampleQP_Modify_migration", "host.event: EventPathMig", core + "TestMigrationWhenThePortGoesDown", "17.2.8"},
	{"EventPathMigError", "ExampleContext_Events_port", "host.event: EventPathMigErr", core + "TestPathMigrationError", "11.6.3"},
	{"EventPortActive", "ExampleContext_Events_port", "world.setDown: SetDown", dev + "TestTransferOutlivesALinkThatComesBack", "11.6.3"},
	{"EventPortError", "ExampleContext_Events_port", "world.setDown: SetDown", dev + "TestTransferOutlivesALinkThatComesBack", "11.6.3"},
	{"EventGIDChange", "ExampleContext_Events_port", "world.changePort: SetGID", dev + "TestGIDsFollowTheAddresses", "infiniband/verbs.h"},
}
