// Package ucm is the kernel's RDMA CM user ABI (rdma/rdma_user_cm.h, ABI version 4) on top of internal/cma: what the stock
// librdmacm writes to /dev/infiniband/rdma_cm, and rsockets above it.
//
// The file that a program opens is the read end of a pipe: readable while events wait, so that poll, epoll and fcntl are the
// system's own. Every write to it is a command, which the sandbox brings here.
package ucm
