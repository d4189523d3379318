// Package pipewatch notices what programs do at the read ends of pipes whose write ends are ours: that they have closed the last
// one, and that they have made room. Event channels of programs are such pipes.
package pipewatch
