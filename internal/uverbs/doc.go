// Package uverbs is the kernel's verbs user ABI on top of package device: what stock rdma-core
// sends to /dev/infiniband/uverbsN, by the ioctl RDMA_VERBS_IOCTL with methods and attributes
// (rdma/rdma_user_ioctl_cmds.h, ib_user_ioctl_cmds.h), and by write() or wrapped in the method
// INVOKE_WRITE as commands (ib_user_verbs.h), with the driver's part of the stock rxe provider
// (rdma_user_rxe.h). It also builds the files of /sys/class/infiniband* that clients look at.
//
// Error numbers, and which attributes are answered, are the kernel's. Where a command cannot be
// carried out nothing has changed.
package uverbs
