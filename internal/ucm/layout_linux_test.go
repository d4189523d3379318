package ucm

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// place is where a field of a structure is, in bytes.
type place struct{ at, size int }

func (p place) get(b []byte) uint64 {
	var v [8]byte
	copy(v[:], b[p.at:p.at+min(p.size, 8)])
	return le.Uint64(v[:])
}

// layouts are the structures of rdma_user_cm.h as these tests write and read them; TestLayoutsAgainstTheHeader asks the header. The
// size is that of the whole structure.
var layouts = map[string]struct {
	size   int
	fields map[string]place
}{
	"create_id":       {24, map[string]place{"uid": {0, 8}, "response": {8, 8}, "ps": {16, 2}, "qp_type": {18, 1}}},
	"destroy_id":      {16, map[string]place{"response": {0, 8}, "id": {8, 4}}},
	"bind_ip":         {40, map[string]place{"response": {0, 8}, "addr": {8, 28}, "id": {36, 4}}},
	"bind":            {136, map[string]place{"id": {0, 4}, "addr_size": {4, 2}, "reserved": {6, 2}, "addr": {8, 128}}},
	"resolve_ip":      {64, map[string]place{"src_addr": {0, 28}, "dst_addr": {28, 28}, "id": {56, 4}, "timeout_ms": {60, 4}}},
	"resolve_addr":    {272, map[string]place{"id": {0, 4}, "timeout_ms": {4, 4}, "src_size": {8, 2}, "dst_size": {10, 2}, "reserved": {12, 4}, "src_addr": {16, 128}, "dst_addr": {144, 128}}},
	"resolve_route":   {8, map[string]place{"id": {0, 4}, "timeout_ms": {4, 4}}},
	"query":           {16, map[string]place{"response": {0, 8}, "id": {8, 4}, "option": {12, 4}}},
	"connect":         {288, map[string]place{"conn_param": {0, 272}, "id": {272, 4}, "reserved": {276, 4}, "ece": {280, 8}}},
	"listen":          {8, map[string]place{"id": {0, 4}, "backlog": {4, 4}}},
	"accept":          {296, map[string]place{"uid": {0, 8}, "conn_param": {8, 272}, "id": {280, 4}, "reserved": {284, 4}, "ece": {288, 8}}},
	"reject":          {264, map[string]place{"id": {0, 4}, "private_data_len": {4, 1}, "reason": {5, 1}, "private_data": {8, 256}}},
	"disconnect":      {4, map[string]place{"id": {0, 4}}},
	"init_qp_attr":    {16, map[string]place{"response": {0, 8}, "id": {8, 4}, "qp_state": {12, 4}}},
	"get_event":       {8, map[string]place{"response": {0, 8}}},
	"set_option":      {24, map[string]place{"optval": {0, 8}, "id": {8, 4}, "level": {12, 4}, "optname": {16, 4}, "optlen": {20, 4}}},
	"notify":          {8, map[string]place{"id": {0, 4}, "event": {4, 4}}},
	"join_ip_mcast":   {48, map[string]place{"response": {0, 8}, "uid": {8, 8}, "addr": {16, 28}, "id": {44, 4}}},
	"join_mcast":      {152, map[string]place{"response": {0, 8}, "uid": {8, 8}, "id": {16, 4}, "addr_size": {20, 2}, "join_flags": {22, 2}, "addr": {24, 128}}},
	"migrate_id":      {16, map[string]place{"response": {0, 8}, "id": {8, 4}, "fd": {12, 4}}},
	"event_resp":      {336, map[string]place{"uid": {0, 8}, "id": {8, 4}, "event": {12, 4}, "status": {16, 4}, "param": {20, 304}, "reserved": {324, 4}, "ece": {328, 8}}},
	"query_addr_resp": {280, map[string]place{"node_guid": {0, 8}, "port_num": {8, 1}, "pkey": {10, 2}, "src_size": {12, 2}, "dst_size": {14, 2}, "src_addr": {16, 128}, "dst_addr": {144, 128}, "ibdev_index": {272, 4}}},
	"query_route_resp": {208, map[string]place{"node_guid": {0, 8}, "ib_route": {8, 128}, "src_addr": {136, 28}, "dst_addr": {164, 28}, "num_paths": {192, 4},
		"port_num": {196, 1}, "ibdev_index": {200, 4}}},
	"query_path_resp": {8, map[string]place{"num_paths": {0, 4}}},
	"conn_param": {272, map[string]place{"qp_num": {0, 4}, "qkey": {4, 4}, "private_data": {8, 256}, "private_data_len": {264, 1}, "srq": {265, 1},
		"responder_resources": {266, 1}, "initiator_depth": {267, 1}, "flow_control": {268, 1}, "retry_count": {269, 1}, "rnr_retry_count": {270, 1}, "valid": {271, 1}}},
	"ud_param":          {304, map[string]place{"qp_num": {0, 4}, "qkey": {4, 4}, "ah_attr": {8, 32}, "private_data": {40, 256}, "private_data_len": {296, 1}}},
	"create_id_resp":    {4, map[string]place{"id": {0, 4}}},
	"destroy_id_resp":   {4, map[string]place{"events_reported": {0, 4}}},
	"migrate_resp":      {4, map[string]place{"events_reported": {0, 4}}},
	"~ib_user_path_rec": {64, map[string]place{"dgid": {0, 16}, "sgid": {16, 16}, "reversible": {44, 4}, "mtu": {48, 4}, "pkey": {52, 2}, "hop_limit": {54, 1}, "traffic_class": {55, 1}, "numb_path": {56, 1}, "mtu_selector": {58, 1}, "rate_selector": {59, 1}, "rate": {60, 1}, "packet_life_time_selector": {61, 1}, "packet_life_time": {62, 1}}},
	"~ib_path_rec_data": {72, map[string]place{"flags": {0, 4}, "path_rec": {8, 64}}},
	"~ib_uverbs_qp_attr": {144, map[string]place{"qp_attr_mask": {0, 4}, "qp_state": {4, 4}, "path_mtu": {12, 4}, "qkey": {20, 4}, "rq_psn": {24, 4}, "sq_psn": {28, 4}, "dest_qp_num": {32, 4},
		"qp_access_flags": {36, 4}, "ah_attr": {40, 32}, "pkey_index": {124, 2}, "max_rd_atomic": {130, 1}, "max_dest_rd_atomic": {131, 1}, "min_rnr_timer": {132, 1}, "port_num": {133, 1},
		"timeout": {134, 1}, "retry_cnt": {135, 1}, "rnr_retry": {136, 1}}},
}

// structures are the names of the inputs, where they differ from the commands'.
var structures = map[string]string{"QUERY_ROUTE": "query", "LEAVE_MCAST": "destroy_id"}

// commandNumbers are the commands by name.
var commandNumbers = func() map[string]uint32 {
	m := map[string]uint32{}
	for n, s := range commands {
		m[s.name] = uint32(n)
	}
	return m
}()

func field_(structure, name string) place {
	p, ok := layouts[structure].fields[name]
	if !ok {
		panic(structure + " has no " + name)
	}
	return p
}

// form is the input of a command.
type form struct {
	name, structure string
	b               []byte
}

// newForm makes an input: of names and values, numbers or bytes.
func newForm(structure string, values ...any) form {
	return formOf(strings.ToUpper(structure), structure, values...)
}

func formOf(command, structure string, values ...any) form {
	f := form{command, structure, make([]byte, layouts[structure].size)}
	for i := 0; i < len(values); i += 2 {
		f.set(values[i].(string), values[i+1])
	}
	return f
}

func (f form) command() uint32         { return commandNumbers[f.name] }
func (f form) num(field string) uint64 { return field_(f.structure, field).get(f.b) }
func (f form) responds() bool          { _, ok := layouts[f.structure].fields["response"]; return ok }
func (f form) with(values ...any) form {
	g := form{f.name, f.structure, append([]byte(nil), f.b...)}
	for i := 0; i < len(values); i += 2 {
		g.set(values[i].(string), values[i+1])
	}
	return g
}

func (f form) set(field string, v any) {
	p := field_(f.structure, field)
	var n uint64
	switch v := v.(type) {
	case []byte:
		clear(f.b[p.at : p.at+p.size])
		copy(f.b[p.at:p.at+p.size], v)
		return
	case int:
		n = uint64(v)
	case uint32:
		n = uint64(v)
	case uint64:
		n = v
	}
	copy(f.b[p.at:p.at+p.size], le.AppendUint64(nil, n))
}

// sockaddr is an address as programs write it.
func sockaddr(a netip.Addr, port int) []byte {
	if a.Is4() {
		v := a.As4()
		b := binary.BigEndian.AppendUint16(le.AppendUint16(nil, syscall.AF_INET), uint16(port))
		return append(append(b, v[:]...), make([]byte, 8)...)
	}
	v := a.As16()
	b := binary.BigEndian.AppendUint16(le.AppendUint16(nil, syscall.AF_INET6), uint16(port))
	return append(append(append(b, 0, 0, 0, 0), v[:]...), 0, 0, 0, 0)
}

func TestLayoutsAgainstTheHeader(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("gcc is missing: apt-get install gcc linux-libc-dev")
	}
	if _, err := os.Stat("/usr/include/rdma/rdma_user_cm.h"); err != nil {
		t.Skip("the kernel's headers are missing: apt-get install linux-libc-dev")
	}
	var src, want strings.Builder
	src.WriteString("#include <stdio.h>\n#include <stddef.h>\n#include <linux/in6.h>\n#include <linux/in.h>\n#include <rdma/rdma_user_cm.h>\nint main(void) {\n")
	ask := func(expr string, v int) {
		fmt.Fprintf(&src, "printf(\"%%lu %s\\n\", (unsigned long)(%s));\n", expr, expr)
		fmt.Fprintf(&want, "%d %s\n", v, expr)
	}
	for name, l := range layouts {
		s := "struct rdma_ucm_" + name
		if name[0] == '~' {
			s = "struct " + name[1:]
		}
		ask("sizeof("+s+")", l.size)
		for f, p := range l.fields {
			ask("offsetof("+s+", "+f+")", p.at)
			ask("sizeof((("+s+" *)0)->"+f+")", p.size)
		}
	}
	for n, s := range commands {
		ask("RDMA_USER_CM_CMD_"+s.name, n)
	}
	for e, v := range map[string]int{"RDMA_USER_CM_ABI_VERSION": abiVersion, "RDMA_OPTION_ID": levelID, "RDMA_OPTION_IB": levelIB, "RDMA_OPTION_ID_TOS": optionTOS,
		"RDMA_OPTION_ID_REUSEADDR": optionReuse, "RDMA_OPTION_ID_AFONLY": optionAFOnly, "RDMA_OPTION_ID_ACK_TIMEOUT": optionAckTimeout, "RDMA_OPTION_IB_PATH": optionIBPath,
		"RDMA_USER_CM_QUERY_ADDR": queryAddr, "RDMA_USER_CM_QUERY_PATH": queryPath, "RDMA_USER_CM_QUERY_GID": queryGID, "RDMA_PS_TCP": 0x106, "RDMA_PS_UDP": 0x111,
		"sizeof(struct rdma_ucm_cmd_hdr)": sizeHeader, "sizeof(struct ib_uverbs_ah_attr)": sizeAHAttr,
		"IB_PATH_GMP | IB_PATH_PRIMARY | IB_PATH_BIDIRECTIONAL": 1 | 2 | 32 | 8} {
		ask(e, v)
	}
	src.WriteString("return 0;\n}\n")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.c"), []byte(src.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-w", "-o", filepath.Join(dir, "p"), filepath.Join(dir, "p.c")).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(filepath.Join(dir, "p")).Output()
	if err != nil {
		t.Fatal(err)
	}
	got, wanted := strings.Split(string(out), "\n"), strings.Split(want.String(), "\n")
	for i := range min(len(got), len(wanted)) {
		if got[i] != wanted[i] {
			t.Errorf("the header says %s, these tests %s", got[i], wanted[i])
		}
	}
	if len(got) != len(wanted) {
		t.Errorf("%d answers to %d questions", len(got), len(wanted))
	}
}

// What each command reads is within the least length that it asks for; beyond that is only what was appended later.
func TestLeastLengths(t *testing.T) {
	for _, s := range commands {
		structure := structures[s.name]
		if structure == "" {
			structure = strings.ToLower(s.name)
		}
		l, ok := layouts[structure]
		if !ok {
			if s.run != nil {
				t.Errorf("%s is not tested", s.name)
			}
			continue
		}
		want := l.size
		if at, later := l.fields["ece"]; later {
			want = at.at
		}
		if s.in != want {
			t.Errorf("%s takes %d bytes, its structure has %d", s.name, s.in, want)
		}
	}
}
