package uverbs

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// header reads one of the kernel's headers.
func header(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("/usr/include/rdma/" + name)
	if err != nil {
		t.Skipf("the kernel's headers are missing: apt-get install linux-libc-dev (%v)", err)
	}
	return string(b)
}

// enums are the constants in a header whose names begin with prefix, with their values as the compiler has them.
func enums(t *testing.T, text, prefix string) map[string]uint64 {
	t.Helper()
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\s+(`+prefix+`\w+)\b`).FindAllStringSubmatch(text, -1) {
		names[m[1]] = true
	}
	var c strings.Builder
	for n := range names {
		fmt.Fprintf(&c, "NUM(%s);\n", n)
	}
	values := map[string]uint64{}
	for k, v := range cProgram(t, c.String()) {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("%s is %q", k, v)
		}
		values[strings.TrimPrefix(k, "num:")] = n
	}
	if len(values) == 0 {
		t.Fatalf("no %s* in the header", prefix)
	}
	return values
}

// Every command of the headers (enum ib_uverbs_write_cmds and the extended ones) is in the table under its number, or
// is one that no kernel carries out.
func TestEveryCommandOfTheHeaders(t *testing.T) {
	never := map[string]bool{"MODIFY_AH": true, "QUERY_AH": true, "REG_SMR": true, "QUERY_MR": true, "BIND_MW": true, "PEEK_CQ": true,
		"THRESHOLD": true, "FLAG_EXTENDED": true, "COMMAND_MASK": true} // the last three are no commands
	text := header(t, "ib_user_verbs.h")
	check := func(prefix, here string, flag uint32) {
		for name, n := range enums(t, text, prefix) {
			name = strings.TrimPrefix(name, prefix)
			c, errno := lookup(uint32(n) | flag)
			switch {
			case never[name]:
				if flag == 0 && n <= lastCommand && errno != syscall.EOPNOTSUPP {
					t.Errorf("%s: %v, want EOPNOTSUPP", name, errno)
				}
			case c == nil:
				t.Errorf("%s (%d) is not in the table", name, n)
			case c.name != here+name:
				t.Errorf("%d is %s in the headers, %s here", n, here+name, c.name)
			}
		}
	}
	check("IB_USER_VERBS_CMD_", "", 0)
	check("IB_USER_VERBS_EX_CMD_", "EX_", commandExtended)
}

// Every method of the headers is in the table, or is of something that the kernel's rxe does not have either: the answer
// is EPROTONOSUPPORT.
func TestEveryMethodOfTheHeaders(t *testing.T) {
	const devices = "device memory, counters, flows, flow actions, work queues and XRC domains are not there"
	absent := map[string]string{
		"DM_ALLOC": devices, "DM_FREE": devices, "DM_MR_REG": devices, "COUNTERS_CREATE": devices, "COUNTERS_DESTROY": devices, "COUNTERS_READ": devices,
		"FLOW_DESTROY": devices, "FLOW_ACTION_ESP_CREATE": devices, "FLOW_ACTION_DESTROY": devices, "FLOW_ACTION_ESP_MODIFY": devices,
		"WQ_CREATE": devices, "WQ_DESTROY": devices, "RWQ_IND_TBL_DESTROY": devices, "XRCD_DESTROY": devices,
	}
	objects := map[string]uint16{"ADVISE_MR": objMR, "QUERY_MR": objMR, "REG_DMABUF_MR": objMR, "REG_MR": objMR}
	for name, o := range map[string]uint16{"PD_": objPD, "CQ_": objCQ, "QP_": objQP, "SRQ_": objSRQ, "AH_": objAH, "MR_": objMR, "MW_": objMW, "ASYNC_EVENT_": objAsyncEvent} {
		objects[name] = o
	}
	const prefix = "UVERBS_METHOD_"
	seen := map[*method]bool{}
	for name, n := range enums(t, header(t, "ib_user_ioctl_cmds.h"), prefix) {
		name = strings.TrimPrefix(name, prefix)
		if absent[name] != "" {
			continue
		}
		object, short := uint16(objDevice), name
		for o, num := range objects {
			if name == o || strings.HasSuffix(o, "_") && strings.HasPrefix(name, o) {
				object, short = num, strings.TrimPrefix(name, o)
			}
		}
		short = strings.TrimSuffix(strings.TrimSuffix(short, "_MR"), "_MR")
		m := methods[uint32(object)<<16|uint32(n)]
		if name == "REG_MR" { // Linux 6.17 and later; libraries fall back to the command
			continue
		}
		if m == nil {
			t.Errorf("%s (%d of %s) is not in the table", name, n, objectName(object))
			continue
		}
		seen[m] = true
		if want := short; m.name != want && name != m.name+"_MR" {
			t.Errorf("%s.%d is %s in the headers, %s here", objectName(object), n, want, m.name)
		}
	}
	for _, m := range methods {
		if !seen[m] {
			t.Errorf("%s.%s is in no header", objectName(m.object), m.name)
		}
	}
}

// Every attribute of every method that is carried out: none is missing, and each has its number.
func TestEveryAttributeOfTheHeaders(t *testing.T) {
	prefixes := map[string]string{
		"DEVICE.INVOKE_WRITE": "", "DEVICE.INFO_HANDLES": "INFO_", "DEVICE.QUERY_PORT": "QUERY_PORT_", "DEVICE.GET_CONTEXT": "GET_CONTEXT_",
		"DEVICE.QUERY_CONTEXT": "QUERY_CONTEXT_", "DEVICE.QUERY_GID_TABLE": "QUERY_GID_TABLE_", "DEVICE.QUERY_GID_ENTRY": "QUERY_GID_ENTRY_",
		"CQ.CREATE": "CREATE_CQ_", "CQ.DESTROY": "DESTROY_CQ_", "QP.CREATE": "CREATE_QP_", "QP.DESTROY": "DESTROY_QP_", "SRQ.CREATE": "CREATE_SRQ_",
		"SRQ.DESTROY": "DESTROY_SRQ_", "PD.DESTROY": "DESTROY_PD_", "AH.DESTROY": "DESTROY_AH_", "MR.DESTROY": "DESTROY_MR_", "MW.DESTROY": "DESTROY_MW_",
		"MR.QUERY": "QUERY_MR_", "MR.ADVISE": "ADVISE_MR_", "MR.REG_DMABUF": "REG_DMABUF_MR_", "ASYNC_EVENT.ALLOC": "ASYNC_EVENT_ALLOC_FD_",
	}
	const first = "UVERBS_ATTR_"
	all := enums(t, header(t, "ib_user_ioctl_cmds.h"), first)
	later := map[string]bool{"GET_CONTEXT_FD_ARR": true} // Linux 6.17: not mandatory, ignored
	for _, m := range methods {
		name := objectName(m.object) + "." + m.name
		prefix, ok := prefixes[name]
		if !ok {
			t.Errorf("the prefix of %s is not given", name)
			continue
		}
		for _, a := range m.attrs {
			if a.id >= attrUHWIn {
				continue
			}
			if n, ok := all[first+prefix+a.name]; !ok || n != uint64(a.id) {
				t.Errorf("%s: %s is %d here, %d (found: %v) in the headers", name, a.name, a.id, n, ok)
			}
		}
		for h, n := range all {
			rest, ok := strings.CutPrefix(h, first+prefix)
			if !ok || prefix == "" || later[prefix+rest] || rest == "ALLOC_FD_HANDLE" || strings.HasPrefix(prefix+rest, "CREATE_CQ_BUFFER") {
				continue
			}
			if m.attr(uint16(n)) == nil {
				t.Errorf("%s: %s (%d) is missing", name, rest, n)
			}
		}
	}
}

// The structures of extended commands: what is needed, and what has a meaning.
func TestExtendedCommandsAgainstTheHeaders(t *testing.T) {
	type end struct{ last string }
	structs := map[uint32]string{exQueryDevice: "ex_query_device", exCreateCQ: "ex_create_cq", exCreateQP: "ex_create_qp", exModifyQP: "ex_modify_qp", exModifyCQ: "ex_modify_cq"}
	ends := map[uint32]end{exQueryDevice: {"reserved"}, exCreateCQ: {"reserved"}, exCreateQP: {"comp_mask"}, exModifyQP: {"base"}, exModifyCQ: {"attr"}} // UAPI_DEF_WRITE_*_EX of uverbs_cmd.c
	answers := map[uint32][2]string{exQueryDevice: {"ex_query_device_resp", "response_length"}, exCreateCQ: {"ex_create_cq_resp", "response_length"}, exCreateQP: {"ex_create_qp_resp", "response_length"}}
	var c strings.Builder
	line := func(key, s, f string) {
		fmt.Fprintf(&c, `printf("%s %%zu\n", offsetof(struct ib_uverbs_%s, %s) + sizeof(((struct ib_uverbs_%s *)0)->%s));`+"\n", key, s, f, s, f)
	}
	for num, s := range structs {
		fmt.Fprintf(&c, "SIZE(ib_uverbs_%s);\n", s)
		line("end:"+s, s, ends[num].last)
		if a := answers[num]; a[0] != "" {
			line("end:"+a[0], a[0], a[1])
		}
	}
	got := cProgram(t, c.String())
	for num, s := range structs {
		cmd := commands[num]
		if want := strconv.Itoa(cmd.req); got["end:"+s] != want {
			t.Errorf("%s: %s bytes are needed by the headers, %s here", cmd.name, got["end:"+s], want)
		}
		if want := strconv.Itoa(max(cmd.req, cmd.full)); got["size:ib_uverbs_"+s] != want {
			t.Errorf("%s: %s bytes have a meaning in the headers, %s here", cmd.name, got["size:ib_uverbs_"+s], want)
		}
		if a := answers[num]; a[0] != "" && got["end:"+a[0]] != strconv.Itoa(cmd.resp) {
			t.Errorf("%s: the answer has %s bytes in the headers, %d here", cmd.name, got["end:"+a[0]], cmd.resp)
		}
	}
}
