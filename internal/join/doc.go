// Package join lets a run use the NIC of another run of the same user in the same network namespace: a second
// "rnic run" finds the first one's NIC and needs no port of its own.
//
//	Host   the process that has the NIC: it listens on an abstract Unix socket, whose name space is that of the network,
//	       and gives each run that joins a front end of its own.
//	Guest  the supervisor of a run that joined: it passes the calls of its programs on to the host and does there, on
//	       the host's behalf, what takes its rights: injecting descriptors, opening the programs' memory.
//
// The host needs no ptrace rights over a guest's programs: where the kernel gives it none (another ancestor under Yama's
// ptrace_scope 1, another pid namespace), the guest opens /proc/PID/mem and maps and passes the descriptors.
// Both sides check that the other is the same user (SO_PEERCRED). Calls are served one at a time for each run.
package join

import "errors"

// Errors of Dial and Listen, for errors.Is.
var (
	// ErrNone: nobody listens at the name, or he is about to end.
	ErrNone = errors.New("no NIC to join")
	// ErrTaken: somebody listens at the name already.
	ErrTaken = errors.New("another run has this NIC")
	// ErrRefused: the host does not let this run in; the text says why.
	ErrRefused = errors.New("the NIC cannot be joined")
)
