package main

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// report is everything about a run of the tests.
type report struct {
	Machine  string
	Programs []string // and their versions
	Seconds  float64
	Complete bool // all cases were run
	Results  []result
}

func (r *report) count(group string, s status) (n int) {
	for _, res := range r.Results {
		if (group == "" || res.Group == group) && res.Status == s {
			n++
		}
	}
	return n
}

func (r *report) write(path string) error {
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// keep takes over the results of another run for the cases that this one lacks, and puts all into the cases' order.
func (r *report) keep(last *report) {
	results := map[string]result{}
	for _, res := range append(last.Results, r.Results...) {
		results[res.ID] = res
	}
	r.Results = nil
	for _, c := range allCases() {
		if res, ok := results[c.id]; ok {
			r.Results = append(r.Results, res)
		}
	}
	r.Seconds = 0
	for _, res := range r.Results {
		r.Seconds += res.Seconds
	}
}

func readReport(path string) (*report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &report{}
	return r, json.Unmarshal(b, r)
}
