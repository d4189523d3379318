package ucm

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"rnic/internal/cma"
	"rnic/internal/ibcm"
)

// What QUERY asks for.
const (
	queryAddr = iota
	queryPath
	queryGID
)

// noIndex is in the place of a device's netlink index: libraries then go by its GUID.
const noIndex = 0xffffffff

// query is struct rdma_ucm_query: response, id, option.
func (c *command) query() error {
	i, err := c.id(8)
	if err != nil {
		return err
	}
	n := i.cm.Info()
	switch c.u32(12) {
	case queryAddr:
		return c.respond(c.u64(0), encodeAddr(&n, putSockaddrAs(n)), 272)
	case queryGID:
		return c.respond(c.u64(0), encodeAddr(&n, putIB(n)), 272)
	case queryPath:
		return c.respond(c.u64(0), encodePath(&n), 8)
	}
	return syscall.ENOSYS
}

// encodeAddr is struct rdma_ucm_query_addr_resp: node_guid, port_num, pkey, sizes, two addresses, ibdev_index.
func encodeAddr(n *cma.Info, put func(src, dst []byte) (int, int)) []byte {
	b := make([]byte, 280)
	if n.Device != nil {
		g := n.Device.NodeGUID()
		copy(b, g[:])
		b[8] = 1
	}
	binary.BigEndian.PutUint16(b[10:], pkey(n))
	src, dst := put(b[16:144], b[144:272])
	le.PutUint16(b[12:], uint16(src))
	le.PutUint16(b[14:], uint16(dst))
	le.PutUint32(b[272:], noIndex)
	return b
}

// pkey is the partition key of the device's address: the kernel knows none for interfaces of Ethernet.
func pkey(n *cma.Info) uint16 {
	if n.IB && n.Device != nil {
		return n.IBSrc.PKey
	}
	return 0
}

func putSockaddrAs(n cma.Info) func(src, dst []byte) (int, int) {
	return func(src, dst []byte) (int, int) {
		switch {
		case n.IB:
			return encodeIB(src, &n.IBSrc), encodeIB(dst, &n.IBDst)
		case n.Src.IsValid() && !n.Dst.IsValid(): // any, of the own family
			return putSockaddr(src, n.Src), putSockaddr(dst, netip.AddrPortFrom(anyLike(n.Src.Addr()), 0))
		}
		return putSockaddr(src, n.Src), putSockaddr(dst, n.Dst)
	}
}

func anyLike(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// putIB writes both addresses as struct sockaddr_ib.
func putIB(n cma.Info) func(src, dst []byte) (int, int) {
	return func(src, dst []byte) (int, int) {
		if n.IB {
			return encodeIB(src, &n.IBSrc), encodeIB(dst, &n.IBDst)
		}
		for k, b := range [][]byte{src, dst} {
			a := []cma.Info{{Src: n.Src}, {Src: n.Dst}}[k].Src
			le.PutUint16(b, afIB)
			binary.BigEndian.PutUint16(b[2:], pkey(&n))
			if a.Addr().IsValid() && !a.Addr().IsUnspecified() {
				g := ibcm.GIDOf(a.Addr())
				copy(b[8:], g[:])
			}
			binary.BigEndian.PutUint64(b[24:], ibcm.ServiceID(uint16(n.Space), a.Port()))
		}
		return 48, 48
	}
}

// Flags of a path (rdma/ib_user_sa.h): GMP, primary, both directions.
const pathFlags = 1 | 2 | 8 | 32

// Times and rates of a path on Ethernet, as the kernel has them: rate code 3 is 10 Gb/s, 18 is 100.
const (
	pathRate     = 18
	pathLifetime = 16
	selectEqual  = 2
)

// encodePath is struct rdma_ucm_query_path_resp with one struct ib_path_rec_data: an SA path record of 64 bytes (vol. 1, 15.2.5.16).
func encodePath(n *cma.Info) []byte {
	if n.PathMTU == 0 {
		return make([]byte, 8)
	}
	b := make([]byte, 8+sizePathData)
	le.PutUint32(b, 1)
	le.PutUint32(b[8:], pathFlags)
	r := b[16:]
	binary.BigEndian.PutUint64(r, ibcm.ServiceID(uint16(n.Space), n.Dst.Port()))
	dst, src := ibcm.GIDOf(n.Dst.Addr()), ibcm.GIDOf(n.Src.Addr())
	copy(r[8:], dst[:])
	copy(r[24:], src[:])
	binary.BigEndian.PutUint32(r[44:], uint32(n.HopLimit))
	r[48] = n.TOS
	r[49] = 1<<7 | 1 // reversible, one path
	binary.BigEndian.PutUint16(r[50:], 0xffff)
	r[54] = selectEqual<<6 | n.PathMTU
	r[55] = selectEqual<<6 | pathRate
	r[56] = selectEqual<<6 | pathLifetime
	return b
}

// queryRoute is QUERY_ROUTE of older libraries, struct rdma_ucm_query_route_resp: node_guid, two paths, two sockaddr_in6, number of
// paths, port number, ibdev_index.
func (c *command) queryRoute() error {
	i, err := c.id(8)
	if err != nil {
		return err
	}
	n := i.cm.Info()
	b := make([]byte, 208)
	if n.Device != nil {
		g := n.Device.NodeGUID()
		copy(b, g[:])
		b[196] = 1
	}
	if n.PathMTU != 0 {
		encodeUserPath(b[8:76], &n)
		le.PutUint32(b[192:], 1)
		if n.Device != nil {
			b[196] = 1
		}
	}
	putSockaddr(b[136:164], n.Src)
	putSockaddr(b[164:192], n.Dst)
	le.PutUint32(b[200:], noIndex)
	return c.respond(c.u64(0), b, 200)
}

// encodeUserPath writes struct ib_user_path_rec.
func encodeUserPath(b []byte, n *cma.Info) {
	dst, src := ibcm.GIDOf(n.Dst.Addr()), ibcm.GIDOf(n.Src.Addr())
	copy(b, dst[:])
	copy(b[16:], src[:])
	le.PutUint32(b[44:], 1) // reversible
	le.PutUint32(b[48:], uint32(n.PathMTU))
	binary.BigEndian.PutUint16(b[52:], 0xffff)
	b[54], b[55], b[56] = n.HopLimit, n.TOS, 1
	b[58], b[59], b[60], b[61], b[62] = selectEqual, selectEqual, pathRate, selectEqual, pathLifetime
}
