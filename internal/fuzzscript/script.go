// Package fuzzscript reads what a fuzzer has come up with as a script: byte by byte, each of which decides something. Only tests import it.
package fuzzscript

// Script is what is left to be read.
type Script []byte

// Next takes the next byte; behind the end there are zeros.
func (s *Script) Next() int {
	if len(*s) == 0 {
		return 0
	}
	v := (*s)[0]
	*s = (*s)[1:]
	return int(v)
}

// Done tells whether all has been read.
func (s Script) Done() bool { return len(s) == 0 }
