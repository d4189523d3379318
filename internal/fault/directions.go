package fault

import (
	"fmt"
	"strings"
)

// ParseDirections reads the specifications of one NIC, each "[send:|recv:]SPEC": for what it sends,
// which is also meant without a direction, and for what it receives. A direction that none is for is
// nil. Errors wrap ErrSpec.
func ParseDirections(texts []string) (send, recv *Spec, err error) {
	for _, text := range texts {
		which := &send
		if rest, ok := strings.CutPrefix(text, "recv:"); ok {
			text, which = rest, &recv
		} else {
			text = strings.TrimPrefix(text, "send:")
		}
		spec, err := Parse(text)
		if err != nil {
			return nil, nil, err
		}
		if *which != nil {
			return nil, nil, fmt.Errorf("%w: given twice for one direction; put the rules into one, with commas", ErrSpec)
		}
		*which = &spec
	}
	return send, recv, nil
}
