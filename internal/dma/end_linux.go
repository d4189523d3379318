package dma

// End says that the process has ended: its number may be another's from now on, so nothing is reached by it any more.
// Every access is hostmem.ErrGone.
func (p *Process) End() { p.ended.Store(true) }
