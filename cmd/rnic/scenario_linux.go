package main

import "os"

// judge is called when the program has ended, with its exit code.
func (r *supervised) judge(code int) error {
	for _, o := range r.own {
		if o.dev != nil && o.nic.Scenario != nil {
			return judgeScenario(o.dev, os.Stderr, code)
		}
	}
	return nil
}
