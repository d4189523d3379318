package link

// Notifier is a Link that tells by a call that Recv has something: on systems, or of links, without descriptors to wait on.
type Notifier interface {
	// Notify has the link call f, which must not block nor call the link, when Recv has something after it had nothing, and when
	// Recv has left something. It reports whether the link does so.
	Notify(f func()) bool
}

// Notify asks l, and what is inside of it if it is a decorator.
func Notify(l Link, f func()) bool {
	n, ok := l.(Notifier)
	return ok && n.Notify(f)
}
