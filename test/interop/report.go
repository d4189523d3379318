package interop

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// Report is what became of the matrix on each kernel.
type Report struct {
	Kernels []Kernel
}

// Kernel is one of them.
type Kernel struct {
	Version string
	Chosen  int // cases; fewer results are there when the run was interrupted
	Seconds float64
	Results []Result
}

// Failed is how many cases failed.
func (k *Kernel) Failed() (n int) {
	for i := range k.Results {
		if !k.Results[i].Pass {
			n++
		}
	}
	return n
}

// Read reads a report.
func Read(path string) (*Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &Report{}
	return r, json.Unmarshal(b, r)
}

// Write writes it.
func (r *Report) Write(path string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// A line for each result, so that changes can be read.
	text := strings.ReplaceAll(string(b), `{"ID"`, "\n"+`{"ID"`)
	return os.WriteFile(path, append([]byte(text), '\n'), 0o644)
}

// Title is the heading of the section of the matrix.
const Title = "The kernel's Soft-RoCE"

// What stands around the section in a document.
const (
	Begin = "<!-- interop: written by make interop -->\n"
	End   = "<!-- end of interop -->\n"
)

// SectionOf is the section in a document, with what stands around it, or nothing.
func SectionOf(document string) string {
	from, to := strings.Index(document, Begin), strings.Index(document, End)
	if from < 0 || to < from {
		return ""
	}
	return document[from : to+len(End)]
}

// WriteInto replaces the section in a document, or appends it.
func (r *Report) WriteInto(path string) error {
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	document, section := string(b), r.Section()
	if old := SectionOf(document); old != "" {
		document = strings.Replace(document, old, section, 1)
	} else {
		document += "\n" + section
	}
	return os.WriteFile(path, []byte(document), 0o644)
}

// Section is the table in Markdown.
func (r *Report) Section() string {
	var b strings.Builder
	b.WriteString(Begin + "\n## " + Title + "\n\n")
	b.WriteString("Programs on `rnic run`, and Go programs on package verbs, against the same programs on the kernel's device in a virtual machine (`make interop`; the cases are in\n" +
		"`test/interop`). A cell counts the combinations that passed of those tried: path MTU 1024 and 4096, IPv4 and IPv6. With loss, our NIC drops 1 % of what it sends and 1 % of\n" +
		"what it receives. A case has three tries: a peer fails when the last acknowledgement is lost of a program that ends, perftest -R tells its client to connect before it\n" +
		"listens (the client then crashes), and an emulated processor on a busy machine stands still for longer than programs wait. What is not reliable is tried without loss only;\n" +
		"perftest -R has no UC and no IPv6, for which rping is there. rxe waits for its timer, two seconds with -R, at each lost response to its READs: these are short.\n" +
		"The Go side is a NIC inside a Go program that speaks the stock program's own exchange (`test/interop/gopeer`).\n")
	for i := range r.Kernels {
		r.Kernels[i].section(&b)
	}
	b.WriteString(End)
	return b.String()
}

// section is the table of one kernel.
func (k *Kernel) section(b *strings.Builder) {
	retried := 0
	for i := range k.Results {
		if k.Results[i].Pass && k.Results[i].Tries > 1 {
			retried++
		}
	}
	fmt.Fprintf(b, "\n### Kernel %s\n\n%d of %d cases were run, %d failed, %d passed after another try; %.0f minutes.\n\n", k.Version, len(k.Results), k.Chosen, k.Failed(), retried, k.Seconds/60)
	b.WriteString("| what | server in the guest | client in the guest | server in the guest, 1 % loss | client in the guest, 1 % loss |\n|---|---|---|---|---|\n")
	var names []string
	cells := map[string]*[4]struct{ pass, all int }{}
	for i := range k.Results {
		res := &k.Results[i]
		name := "`" + res.Row + "`"
		if res.Go {
			name = res.Row + ", Go"
		}
		if cells[name] == nil {
			cells[name] = &[4]struct{ pass, all int }{}
			names = append(names, name)
		}
		column := 0
		if res.Direction != (&Case{ToGuest: true}).Direction() {
			column++
		}
		if res.Loss {
			column += 2
		}
		cell := &cells[name][column]
		cell.all++
		if res.Pass {
			cell.pass++
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(b, "| %s |", name)
		for _, cell := range cells[name] {
			switch {
			case cell.all == 0:
				b.WriteString(" |")
			case cell.pass < cell.all:
				fmt.Fprintf(b, " **%d of %d** |", cell.pass, cell.all)
			default:
				fmt.Fprintf(b, " %d of %d |", cell.pass, cell.all)
			}
		}
		b.WriteString("\n")
	}
	k.failures(b)
}

// failures lists what failed, and what passed after another try.
func (k *Kernel) failures(b *strings.Builder) {
	escape := strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;")
	table := func(title string, of func(*Result) string) {
		begun := false
		for i := range k.Results {
			reason := of(&k.Results[i])
			if reason == "" {
				continue
			}
			if !begun {
				fmt.Fprintf(b, "\n| %s | how |\n|---|---|\n", title)
				begun = true
			}
			fmt.Fprintf(b, "| `%s` | %s |\n", k.Results[i].ID, escape.Replace(reason))
		}
	}
	table("failed", func(r *Result) string {
		if r.Pass {
			return ""
		}
		return r.Reason
	})
	table("passed after another try, having failed", func(r *Result) string {
		if r.Pass {
			return r.First
		}
		return ""
	})
}
