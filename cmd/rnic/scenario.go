package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"unicode"

	"rnic/internal/device"
	"rnic/internal/fault"
	"rnic/internal/nic"
	"rnic/internal/sandbox"
)

// exitScenario is the exit code of a run whose scenario has not come to what it expects. A program's own status of this
// number is turned into 1, so that it cannot be mistaken for it.
const exitScenario = 121

// scenarioFile is a scenario on its way to the process that plays it. It has been parsed once.
type scenarioFile struct {
	Name string
	Text []byte // its length in a message does not depend on what is written there
}

// maxScenarioFile bounds what is read, in bytes: the configuration goes to the supervisor in one message.
const maxScenarioFile = 64 << 10

// readScenario reads and checks the file of --scenario; nil without one.
func readScenario(path string) (*scenarioFile, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--scenario: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxScenarioFile+1))
	if err != nil {
		return nil, fmt.Errorf("--scenario %s: %w", path, err)
	}
	if len(text) > maxScenarioFile {
		return nil, fmt.Errorf("--scenario %s: more than %d bytes", path, maxScenarioFile)
	}
	s := &scenarioFile{filepath.Base(path), text}
	if _, err := fault.ParseScenario(s.Name, string(s.Text), knownCounter); err != nil {
		return nil, fmt.Errorf("--scenario: %w", err)
	}
	return s, nil
}

func (s *scenarioFile) parsed() *fault.Scenario {
	if s == nil {
		return nil
	}
	sc, _ := fault.ParseScenario(s.Name, string(s.Text), knownCounter) // the process that the user started has parsed it
	return sc
}

// counterName is the name of a counter of nic.Stats in scenarios: RNRNAKsSent is rnr_naks_sent.
func counterName(field string) string {
	for _, word := range []string{"RNR", "NAKs", "PKey", "QKey", "CNPs", "ECN", "UD", "UC", "CQ", "ACKs", "PSN"} {
		field = strings.Replace(field, word, " "+word[:1]+strings.ToLower(word[1:]), 1)
	}
	var b strings.Builder
	for i, c := range field {
		if unicode.IsUpper(c) && i > 0 && b.Len() > 0 {
			b.WriteByte('_')
		}
		if c != ' ' {
			b.WriteRune(unicode.ToLower(c))
		}
	}
	return b.String()
}

// nicCounters calls f with each of the NIC's counters.
func nicCounters(s *nic.Stats, f func(name string, value uint64)) {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		if v.Field(i).CanUint() {
			f(counterName(v.Type().Field(i).Name), v.Field(i).Uint())
		}
	}
}

func knownCounter(name string) (known bool) {
	nicCounters(new(nic.Stats), func(n string, _ uint64) { known = known || n == name })
	return known
}

// judgeScenario writes what the scenario of a device has come to, and returns an error if that is not what it expects.
func judgeScenario(d *device.Device, out io.Writer, exit int) error {
	stats := d.Stats()
	result := d.Judge(func(subject, counter string) (value uint64) {
		if subject == fault.SubjectProgram {
			return uint64(exit)
		}
		nicCounters(&stats, func(n string, v uint64) {
			if n == counter {
				value = v
			}
		})
		return value
	})
	if result == nil {
		return nil
	}
	result.Write(out, "rnic: ")
	if len(result.Failed) == 0 {
		return nil
	}
	return &judged{fmt.Errorf("scenario %s: %d of its lines not met; the program's own status was %d", result.Name, len(result.Failed), exit)}
}

// judged is the error of a run whose scenario was not met.
type judged struct{ error }

func (e *judged) ExitCode() int { return exitScenario }

func (e *judged) Is(target error) bool { return target == sandbox.ErrJudged }

func (e *judged) Unwrap() error { return errors.Unwrap(e.error) }
