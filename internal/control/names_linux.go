package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// all begins the names of all users' control sockets; the user's number and the process's follow.
const all = "@rnic-control/"

// maxNames bounds how many sockets Find asks: anybody may take such names.
const maxNames = 256

// patience is how long Find waits for a process to say what it has.
const patience = 2 * time.Second

func prefix() string { return all + strconv.Itoa(os.Geteuid()) + "/" }

// Find lists the processes of this network namespace that have NICs: this user's, or everybody's for root. Those that do
// not answer are left out.
func Find() ([]NIC, error) {
	f, err := os.Open("/proc/thread-self/net/unix")
	if err != nil {
		return nil, fmt.Errorf("looking for running NICs: %w", err)
	}
	defer f.Close()
	p := prefix()
	if os.Geteuid() == 0 {
		p = all
	}
	answers := make(chan *NIC)
	names := listening(f, p)
	for _, name := range names {
		go func() { answers <- ask(name) }()
	}
	var nics []NIC
	for range names {
		if n := <-answers; n != nil {
			nics = append(nics, *n)
		}
	}
	slices.SortFunc(nics, func(a, b NIC) int {
		if a.PID != b.PID {
			return a.PID - b.PID
		}
		return strings.Compare(a.address, b.address)
	})
	return nics, nil
}

// listening are the names in /proc/net/unix (unix(7)) that begin with prefix and at which somebody listens.
func listening(table io.Reader, prefix string) (names []string) {
	seen := map[string]bool{}
	for s := bufio.NewScanner(table); s.Scan() && len(names) < maxNames; {
		// Num RefCount Protocol Flags Type St Inode Path: listening sockets have the flag 0x10000.
		w := strings.Fields(s.Text())
		if len(w) == 8 && w[3] == "00010000" && w[4] == "0001" && strings.HasPrefix(w[7], prefix) && !seen[w[7]] {
			seen[w[7]] = true
			names = append(names, w[7])
		}
	}
	return names
}

// ask describes who listens at the name; nil: nobody whom this user may ask.
func ask(name string) *NIC {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n := &NIC{address: name}
	c, err := Dial(ctx, n)
	if err != nil {
		return nil
	}
	defer c.Close()
	if err := c.Call(ctx, opAbout, nil, &n.About); err != nil {
		return nil
	}
	n.PID, n.UID = c.pid, c.uid
	if len(n.Devices) > 64 {
		n.Devices = n.Devices[:64]
	}
	for i := range n.Devices {
		n.Devices[i] = clean(n.Devices[i], 64)
	}
	n.Command, n.Version = clean(n.Command, 200), clean(n.Version, 32)
	return n
}

// names are what a server tries to listen at: another process namespace may have a process of the same number.
func names(yield func(string) bool) {
	base := prefix() + strconv.Itoa(os.Getpid())
	for i := range 100 {
		name := base
		if i > 0 {
			name += "." + strconv.Itoa(i)
		}
		if !yield(name) {
			return
		}
	}
}

var errNames = errors.New("all names are taken")
