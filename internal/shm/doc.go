// Package shm is the memory that a program under the sandbox and the NIC share: one unlinked tmpfs
// file for each open of a verbs device. The program's command descriptor is an open of this file.
// Its queues lie at the file's beginning, where the program maps them through its descriptor; its
// doorbells, 32-byte writes (IB_USER_VERBS_CMD_POST_SEND), land at its end, because the descriptor
// is handed over positioned there.
//
// Everything in the file is under the program's control: it can write any byte, seek its
// descriptor, and truncate the file below the NIC's mappings. Nothing of that may harm anything but
// the program's own queues and doorbells.
//
// The package works on Linux.
package shm
