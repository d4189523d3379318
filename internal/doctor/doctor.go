// Package doctor looks at a machine for what rnic run needs, and at the way between two machines for
// what RoCEv2 needs. It names what it found, what that means, and the command that mends it.
//
// The checks see the machine through a System, whose parts tests replace.
package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Level says how bad a finding is.
type Level int

const (
	OK      Level = iota // as it should be
	Warning              // works, with the limit that the finding names
	Problem              // rnic run, or the exchange with the peer, does not work
)

var levelNames = [...]string{"ok", "warning", "problem"}

func (l Level) String() string { return levelNames[l] }

// MarshalText makes a level its name in JSON.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads a level's name.
func (l *Level) UnmarshalText(b []byte) error {
	for i, name := range levelNames {
		if name == string(b) {
			*l = Level(i)
			return nil
		}
	}
	return fmt.Errorf("doctor: level %q", b)
}

// Finding is the outcome of one look.
type Finding struct {
	Check string   `json:"check"`           // what was looked at, one or two words
	Level Level    `json:"level"`           // how bad it is
	Found string   `json:"found"`           // what was seen
	Means string   `json:"means,omitempty"` // what that means for the user; always there unless Level is OK
	Fix   []string `json:"fix,omitempty"`   // commands to type, alternatives; a line that begins with # is a remark
}

// Report is what an examination came to.
type Report struct {
	Works    bool      `json:"works"` // no finding is a Problem
	Findings []Finding `json:"findings"`
}

// NewReport makes a report of findings.
func NewReport(findings []Finding) Report {
	r := Report{Works: true, Findings: findings}
	for _, f := range findings {
		r.Works = r.Works && f.Level != Problem
	}
	return r
}

// JSON writes the report as one object.
func (r Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// width of the lines of text, and of its first two columns.
const (
	textWidth   = 118
	levelColumn = 9
	checkColumn = 21
)

// Text writes the report for a reader. Its last line begins with works or fails, whichever is the case.
func (r Report) Text(w io.Writer, works, fails string) {
	var count [len(levelNames)]int
	for _, f := range r.Findings {
		count[f.Level]++
		head := fmt.Sprintf("%-*s%-*s", levelColumn, f.Level, checkColumn, f.Check)
		indent := strings.Repeat(" ", levelColumn+checkColumn)
		wrap(w, head, indent, f.Found)
		wrap(w, indent, indent, f.Means)
		for _, c := range f.Fix {
			if strings.HasPrefix(c, "#") {
				wrap(w, indent, indent+"  ", c)
				continue
			}
			fmt.Fprintln(w, indent+"    "+c) // not wrapped: it is to be copied
		}
	}
	verdict := works
	if !r.Works {
		verdict = fails
	}
	fmt.Fprintf(w, "\n%s: %d ok, %s, %s.\n", verdict, count[OK], plural(count[Warning], "warning"), plural(count[Problem], "problem"))
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// wrap writes text in lines of textWidth, nothing for no text.
func wrap(w io.Writer, first, rest, text string) {
	line := first
	empty := true
	for _, word := range strings.Fields(text) {
		if !empty && len(line)+1+len(word) > textWidth {
			fmt.Fprintln(w, line)
			line, empty = rest, true
		}
		if !empty {
			line += " "
		}
		line += word
		empty = false
	}
	if !empty {
		fmt.Fprintln(w, line)
	}
}

// checks in the order of the report.
var checks = []func(*System) []Finding{
	checkKernel,
	checkSeccomp,
	checkMemory,
	checkYama,
	checkForceOverride,
	checkLibrary,
	checkProvider,
	checkKernelDevices,
	checkAddresses,
	checkPort,
	checkBuffers,
	checkOffload,
	checkShm,
	checkTemp,
	checkFileSize,
	checkFiles,
	checkProcesses,
	checkInotify,
	checkProcessors,
	checkContainer,
	checkTrial,
	checkStock,
}

// Examine makes every check.
func Examine(s *System) Report {
	if s.Trial != nil && s.Seccomp().Err == nil { // without a filter no run begins, and the check of it says why
		s.tried = true
		s.trialErr = s.Trial()
		s.worked = s.trialErr == nil
	}
	var all []Finding
	for _, check := range checks {
		all = append(all, check(s)...)
	}
	return NewReport(all)
}

// ok is a finding that all is well.
func ok(check, format string, args ...any) []Finding {
	return []Finding{{Check: check, Found: fmt.Sprintf(format, args...)}}
}
