// Package rdmanl is the protocol of NETLINK_RDMA sockets, as far as it concerns devices (RDMA_NL_NLDEV of
// rdma/rdma_netlink.h): it takes the requests of a datagram apart, and makes the answers from a description of the
// devices and what programs have created on them. It is how libibverbs finds its devices, and what the rdma tool
// of iproute2 speaks.
//
// The package is pure: no socket, no clock. Requests are anybody's bytes: whatever they are, System.Answer returns
// datagrams, each of which fits into the smallest buffer that clients receive with.
package rdmanl
