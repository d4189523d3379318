//go:build !unix

package main

import "os"

// dumpSignal is never: there is no such signal.
func dumpSignal() <-chan os.Signal { return nil }
