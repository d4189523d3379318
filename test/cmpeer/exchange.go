package main

import "slices"

// rdma_client and rdma_server send each other one message of 16 bytes, the client first; the client disconnects when it has the answer.
const rdmaSize = 16

func rdmaClient(p *peer) error {
	l, err := p.dial(rdmaSize, 1)
	if err != nil {
		return err
	}
	if err := l.send(); err != nil {
		return err
	}
	if err := l.wait(true); err != nil {
		return err
	}
	return l.conn.Close()
}

func rdmaServer(p *peer) error {
	l, err := p.accept(rdmaSize, 1)
	if err != nil {
		return err
	}
	if err := l.wait(true); err != nil {
		return err
	}
	if err := l.send(); err != nil {
		return err
	}
	return l.finish()
}

// ucmatose makes connections, over each of which the server sends ten messages of 100 bytes and then the client as many. The server disconnects.
const (
	ucmatoseSize     = 100
	ucmatoseMessages = 10
)

func (l *link) sendAll() error {
	for range ucmatoseMessages {
		if err := l.send(); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) receiveAll() error {
	for range ucmatoseMessages {
		if err := l.wait(true); err != nil {
			return err
		}
	}
	return nil
}

// all connects, with make, and takes steps, each on every connection before the next one.
func all(connect func(length, receives int) (*link, error), steps ...func(*link) error) error {
	var links []*link
	for range *count {
		l, err := connect(ucmatoseSize, ucmatoseMessages)
		if err != nil {
			return err
		}
		links = append(links, l)
	}
	for _, step := range steps {
		for l := range slices.Values(links) {
			if err := step(l); err != nil {
				return err
			}
		}
	}
	return nil
}

func ucmatoseClient(p *peer) error {
	return all(p.dial, (*link).receiveAll, (*link).sendAll, (*link).finish)
}

func ucmatoseServer(p *peer) error {
	return all(p.accept, (*link).sendAll, (*link).receiveAll, func(l *link) error { return l.conn.Close() })
}
