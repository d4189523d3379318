package main

import (
	"fmt"
	"strings"
	"time"
)

// The factors of the combinations.
const (
	program = iota // and its transport
	size
	mtu
	ending
	directions
	completion
	queuePairs
	inline
	receives
	network
	factorCount
)

// factor is a parameter of perftest's commands and the values it takes.
type factor struct {
	name   string
	values []string
}

// loss is the value of the factor network that drops packets.
const loss = "two NICs, 1 % lost"

// factors are all of them, in the order of the constants.
func factors() []factor {
	f := make([]factor, factorCount)
	var programs []string
	for _, t := range tools {
		for _, transport := range t.transports {
			programs = append(programs, t.name+" -c "+transport)
		}
	}
	f[program] = factor{"program", programs}
	f[size] = factor{"size", []string{"1", "2", "63", "64", "1000", "4095", "4096", "65537", "1048579", "8388608", "-a"}}
	f[mtu] = factor{"mtu", []string{"256", "512", "1024", "2048", "4096"}}
	f[ending] = factor{"ending", []string{"-n", "-D"}}
	f[directions] = factor{"directions", []string{"", "-b"}}
	f[completion] = factor{"completion", []string{"", "-e"}}
	f[queuePairs] = factor{"queue pairs", []string{"1", "4", "16"}}
	f[inline] = factor{"inline", []string{"", "-I 64"}}
	f[receives] = factor{"receives", []string{"", "--use-srq"}}
	f[network] = factor{"network", []string{"one NIC", "two NICs", loss}}
	return f
}

// anyValue in a combination stands for a value that is not chosen yet.
const anyValue = -1

// legal says whether a combination, of which some values may not be chosen yet, can become one that the programs
// take. What perftest refuses, or would wait for for ever, is not.
func legal(f []factor, c []int) bool {
	value := func(i int) (string, bool) {
		if c[i] == anyValue {
			return "", false
		}
		return f[i].values[c[i]], true
	}
	name, _ := value(program)
	t, transport := toolOf(name)
	bytes, _ := value(size)
	end, _ := value(ending)
	set := func(i int) bool { v, ok := value(i); return ok && v != "" }
	if t != nil {
		many, ok := value(queuePairs)
		switch {
		case set(directions) && !t.bandwidth, ok && many != "1" && !t.bandwidth:
			return false
		case set(completion) && !t.events, set(inline) && !t.send && !t.write, set(receives) && !t.send:
			return false
		case t.atomic && bytes != "" && bytes != "64": // its size is always 8: one value stands for it
			return false
		case transport != "RC" && set(receives) && ok && many != "1":
			return false // perftest makes as many receives as one of the queue pairs that share them needs
		case transport == "UD" && !datagramFits(value, bytes):
			return false
		}
		// A receiver would wait for ever for a message that an unreliable transport lost, and so would a latency
		// test; a message of thousands of packets is lost as soon as one is.
		v, _ := value(network)
		if transport != "RC" && (v == loss || v != "" && v != "one NIC" && long(bytes)) {
			return false
		}
	}
	// -D runs one size, and does not sleep on events.
	return !(end == "-D" && (bytes == "-a" || set(completion)))
}

// long says whether a size is of many packets.
func long(bytes string) bool {
	return bytes == "65537" || bytes == "1048579" || bytes == "8388608" || bytes == "-a"
}

// datagramFits says whether a message of a size may be a datagram at the path MTU of a combination.
func datagramFits(value func(int) (string, bool), bytes string) bool {
	switch bytes {
	case "", "1", "2", "63", "64":
		return true
	case "1000", "4095", "4096":
		limit := 0
		m, ok := value(mtu)
		if !ok {
			return true
		}
		var n int
		fmt.Sscan(m, &limit)
		fmt.Sscan(bytes, &n)
		return n <= limit
	}
	return false
}

// toolOf finds the tool and the transport of a value of the factor program.
func toolOf(value string) (*tool, string) {
	name, transport, ok := strings.Cut(value, " -c ")
	for i := range tools {
		if ok && tools[i].name == name {
			return &tools[i], transport
		}
	}
	return nil, ""
}

// twoValues are values of two factors, the first factor being the lower one.
type twoValues struct{ f1, v1, f2, v2 int }

// allPairs returns combinations in which each legal pair of values of two factors occurs. It goes greedily and without
// chance: a combination starts with the first pair that is missing, and takes for each further factor the
// value that brings in most missing pairs. https://www.pairwise.org explains the method.
func allPairs(f []factor, legal func([]factor, []int) bool) [][]int {
	missing := map[twoValues]bool{}
	var order []twoValues
	for f1 := range f {
		for v1 := range f[f1].values {
			for f2 := f1 + 1; f2 < len(f); f2++ {
				for v2 := range f[f2].values {
					c := blank(len(f))
					c[f1], c[f2] = v1, v2
					if legal(f, c) && complete(f, legal, c) != nil {
						p := twoValues{f1, v1, f2, v2}
						missing[p], order = true, append(order, p)
					}
				}
			}
		}
	}
	var result [][]int
	for _, p := range order {
		if !missing[p] {
			continue
		}
		c := blank(len(f))
		c[p.f1], c[p.f2] = p.v1, p.v2
		for i := range f {
			if c[i] == anyValue {
				c[i] = bestValue(f, legal, missing, c, i)
			}
		}
		for f1 := range f {
			for f2 := f1 + 1; f2 < len(f); f2++ {
				delete(missing, twoValues{f1, c[f1], f2, c[f2]})
			}
		}
		result = append(result, c)
	}
	return result
}

func blank(n int) []int {
	c := make([]int, n)
	for i := range c {
		c[i] = anyValue
	}
	return c
}

// bestValue is the value of factor i that adds most missing pairs to what is chosen, of those with which the
// combination can be completed; the first of equals.
func bestValue(f []factor, legal func([]factor, []int) bool, missing map[twoValues]bool, c []int, i int) int {
	best, most := anyValue, -1
	for v := range f[i].values {
		c[i] = v
		n := 0
		for j := range f {
			switch {
			case c[j] == anyValue || j == i:
			case j < i && missing[twoValues{j, c[j], i, v}], j > i && missing[twoValues{i, v, j, c[j]}]:
				n++
			}
		}
		if n > most && legal(f, c) && complete(f, legal, c) != nil {
			best, most = v, n
		}
	}
	c[i] = anyValue
	return best
}

// complete returns a legal combination with the values chosen so far, or nil.
func complete(f []factor, legal func([]factor, []int) bool, c []int) []int {
	c = append([]int(nil), c...)
	var try func(i int) bool
	try = func(i int) bool {
		if i == len(f) {
			return true
		}
		if c[i] != anyValue {
			return try(i + 1)
		}
		for v := range f[i].values {
			c[i] = v
			if legal(f, c) && try(i+1) {
				return true
			}
		}
		c[i] = anyValue
		return false
	}
	if !try(0) {
		return nil
	}
	return c
}

// pairwiseCases are the combinations as cases.
func pairwiseCases() (cases []testCase) {
	f := factors()
	for number, combination := range allPairs(f, legal) {
		c := combined(f, combination)
		c.short = number%40 == 0
		cases = append(cases, c)
	}
	return cases
}

// combined is the case of one combination.
func combined(f []factor, c []int) testCase {
	value := func(i int) string { return f[i].values[c[i]] }
	t, _ := toolOf(value(program))
	command := value(program) + " -F -m " + value(mtu)
	check, n := measured(0), iterations(value(size), value(network) == loss)
	switch {
	case t.atomic: // its size is always 8
	case value(size) == "-a":
		command, check = command+" -a", measured(0, doublings()...)
	default:
		var bytes int
		fmt.Sscan(value(size), &bytes)
		command, check = command+" -s "+value(size), measured(0, bytes)
	}
	if value(ending) == "-D" {
		command += " -D 1 -f 0"
	} else {
		command += fmt.Sprintf(" -n %d", n)
	}
	for _, i := range []int{directions, completion, inline, receives} {
		if value(i) != "" {
			command += " " + value(i)
		}
	}
	if value(queuePairs) != "1" {
		command += " -q " + value(queuePairs)
	}
	l := oneNIC
	if value(network) != "one NIC" {
		l = twoNICs
	}
	id := named(strings.TrimPrefix(command, "ib_"))
	if l == twoNICs {
		id += "_two_NICs"
	}
	if value(network) == loss {
		id += "_loss"
	}
	made := perftestPair("pairwise/"+id, l, command)
	made.check = check
	if value(network) == loss {
		made.run, made.timeout = []string{"--fault", "drop=1%,seed=7"}, 90*time.Second
	}
	return made
}

// iterations are few where messages are long.
func iterations(size string, lossy bool) int {
	switch {
	case size == "-a":
		return 5
	case size == "8388608":
		return 5
	case size == "1048579":
		return 10
	case lossy:
		return 100
	}
	return 500
}
