package verbs

// Unit is the index of the processing unit that the queue pair is of; see DeviceConfig.Units.
func (q *QP) Unit() int { return q.qp.Unit() }

// MoveTo makes the queue pair one of another processing unit, from 0 to Device.Units()-1, while it works: nothing that it has in
// flight is lost. A queue pair is placed when it is created (CreateCQOnVector); this is for programs that know better, or later.
// ErrInvalid: there is no such unit. ErrClosed: the queue pair is closed.
func (q *QP) MoveTo(unit int) error {
	if err := q.use("move queue pair"); err != nil {
		return err
	}
	return q.told("move queue pair", q.qp.MoveTo(unit))
}
