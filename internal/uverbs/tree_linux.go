package uverbs

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"

	"rnic/internal/device"
	"rnic/internal/sandbox"
)

// DefaultName is the device's name where none is given.
const DefaultName = "rxe0"

// Numbers of the device node uverbs0 (drivers/infiniband/core: IB_UVERBS_MAJOR, _BASE_MINOR).
const (
	verbsMajor = 231
	verbsMinor = 192
)

// Tree is what the Driver needs of the sandbox to build its files; *sandbox.Supervisor is one.
type Tree interface {
	AddDir(path string) error
	AddFile(path, content string) error
	AddLive(path string, read func() (string, error)) error
	AddSymlink(path, target string) error
	AddDevice(path string, major, minor uint32, d sandbox.Device) error
	Remove(path string) error
}

// AddTo adds the device's files to the tree: /dev/infiniband/uverbs0 (or of Config.Index) and what clients read below
// /sys/class/infiniband and /sys/class/infiniband_verbs.
func (d *Driver) AddTo(t Tree) error {
	b := treeBuilder{t: t}
	node, minor := "uverbs"+strconv.Itoa(d.cfg.Index), uint32(verbsMinor+d.cfg.Index)
	verbs := "/sys/class/infiniband_verbs"
	b.file(verbs+"/abi_version", strconv.Itoa(classABI))
	b.file(verbs+"/"+node+"/abi_version", strconv.Itoa(providerABI))
	b.file(verbs+"/"+node+"/dev", fmt.Sprintf("%d:%d", verbsMajor, minor))
	b.file(verbs+"/"+node+"/ibdev", d.cfg.Name)
	b.file(verbs+"/"+node+"/uevent", fmt.Sprintf("MAJOR=%d\nMINOR=%d\nDEVNAME=infiniband/%s\nDEVMODE=0666", verbsMajor, minor, node))
	b.deviceFiles(d, "/sys/class/infiniband/"+d.cfg.Name)
	if b.err == nil {
		b.err = t.AddDevice("/dev/infiniband/"+node, verbsMajor, minor, d)
	}
	paths := []string{verbs + "/" + node, "/sys/class/infiniband/" + d.cfg.Name, "/dev/infiniband/" + node}
	d.noHook = d.dev.OnPortChange(func() {
		if d.dev.Removed() {
			d.removed(t, paths)
			return
		}
		b := treeBuilder{t: t}
		b.portStateFiles(d, "/sys/class/infiniband/"+d.cfg.Name+"/ports/1")
		if b.err != nil {
			d.logf("the port has changed: %v", b.err)
		}
	})
	return b.err
}

// treeBuilder keeps the first error.
type treeBuilder struct {
	t   Tree
	err error
}

func (b *treeBuilder) file(path, line string) {
	if b.err == nil {
		b.err = b.t.AddFile(path, line+"\n")
	}
}

func (b *treeBuilder) dir(path string) {
	if b.err == nil {
		b.err = b.t.AddDir(path)
	}
}

func (b *treeBuilder) deviceFiles(d *Driver, dir string) {
	v := d.cfg.Version
	guid := quads(d.attr.NodeGUID[:])
	b.file(dir+"/node_type", "1: CA")
	b.file(dir+"/node_desc", d.cfg.Name)
	b.file(dir+"/node_guid", guid)
	b.file(dir+"/sys_image_guid", guid)
	b.file(dir+"/fw_ver", fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]))
	b.file(dir+"/hw_rev", "0x0")
	b.file(dir+"/board_id", "rnic")
	b.file(dir+"/uevent", "NAME="+d.cfg.Name)
	b.portFiles(d, dir+"/ports/1")
	// Where the machine's own device of that name would be: its place, and its interfaces.
	b.file(dir+"/device/numa_node", systemFile("/sys/devices/system/node/online", "-1", numaNode))
	b.file(dir+"/device/local_cpus", systemFile("/sys/devices/system/node/node0/cpumap", "1", identity))
	b.file(dir+"/device/local_cpulist", systemFile("/sys/devices/system/node/node0/cpulist", "0", identity))
	b.dir(dir + "/device/infiniband_verbs/uverbs" + strconv.Itoa(d.cfg.Index))
	seen := map[string]bool{}
	for _, g := range d.dev.GIDs() {
		if g.IfName != "" && !seen[g.IfName] {
			seen[g.IfName] = true
			b.dir(dir + "/device/net/" + g.IfName)
			if len(seen) == 1 {
				b.file(dir+"/parent", g.IfName)
			}
		}
	}
}

func (b *treeBuilder) portFiles(d *Driver, dir string) {
	b.portStateFiles(d, dir)
	b.file(dir+"/rate", portRate)
	b.file(dir+"/link_layer", "Ethernet")
	b.file(dir+"/cap_mask", fmt.Sprintf("0x%08x", d.port.CapFlags))
	b.file(dir+"/lid", "0x0")
	b.file(dir+"/lid_mask_count", "0")
	b.file(dir+"/sm_lid", "0x0")
	b.file(dir+"/sm_sl", "0")
	b.file(dir+"/pkeys/0", "0xffff")
	b.counterFiles(d, dir)
}

// portStateFiles are those that change with the network: of the state, and of the GID table.
func (b *treeBuilder) portStateFiles(d *Driver, dir string) {
	state, phys := "4: ACTIVE", "5: LinkUp"
	if !d.dev.PortActive() {
		state, phys = "1: DOWN", "3: Disabled"
	}
	b.file(dir+"/state", state)
	b.file(dir+"/phys_state", phys)
	gids := map[int]device.GIDEntry{}
	for _, g := range d.dev.GIDs() {
		gids[g.Index] = g
	}
	for slot := range int(d.port.GIDs) {
		n := strconv.Itoa(slot)
		g, used := gids[slot]
		b.file(dir+"/gids/"+n, quads(g.GID[:]))
		// A read of an empty slot's attributes fails in the kernel: there is no file here, unless the slot was
		// in use: then it is the last one's.
		if used {
			b.file(dir+"/gid_attrs/types/"+n, "RoCE v2")
			b.file(dir+"/gid_attrs/ndevs/"+n, g.IfName)
		}
	}
}

// quads writes bytes as sysfs does: groups of two, in hexadecimal, with colons.
func quads(b []byte) string {
	s := hex.EncodeToString(b)
	out := s[:4]
	for i := 4; i < len(s); i += 4 {
		out += ":" + s[i:i+4]
	}
	return out
}

// systemFile is the first line of a file of this machine, or a default.
func systemFile(path, def string, use func(string) string) string {
	b, err := os.ReadFile(path)
	if err != nil || len(b) < 2 {
		return def
	}
	return use(string(b[:len(b)-1]))
}

func identity(s string) string { return s }

// numaNode is the only node if there is one, else none in particular.
func numaNode(online string) string {
	if _, err := strconv.Atoi(online); err == nil {
		return online
	}
	return "-1"
}
