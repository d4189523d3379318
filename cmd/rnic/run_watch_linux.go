package main

import (
	"io"
	"os"
	"os/signal"
	"syscall"

	"rnic/internal/uverbs"
)

// watch is what -v, --json and --pedantic ask for; done closes what it has opened.
func (c *runConfig) watch() (w uverbs.Watch, done func(), err error) {
	if c.Verbose || c.Pedantic || c.JSON.On {
		// Who reads standard error may stop, as head does: that is no reason to end the program.
		signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	}
	w = uverbs.Watch{Text: os.Stderr, Commands: c.Verbose, Pedantic: c.Pedantic}
	done = func() {}
	switch {
	case !c.JSON.On:
	case c.JSON.Path == "":
		w.Text, w.JSON = nil, io.Writer(os.Stderr)
	default:
		f, err := create("--json", c.JSON.Path)
		if err != nil {
			return w, done, err
		}
		w.JSON, done = patientJSON(f), func() { f.Close() }
	}
	return w, done, nil
}
