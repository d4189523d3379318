package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"rnic/test/interop"
)

// markdown is the whole of docs/conformance.md; matrix is the section that make interop writes, as it is there.
func (r *report) markdown(suite []suiteRow, matrix string) string {
	var b strings.Builder
	b.WriteString("# Conformance\n\nStock programs of Debian, unmodified, on `rnic run`. This document is written by `make conformance`, whose cases are in `tools/conformance`; do not edit it.\n\n" +
		"```sh\nmake conformance                                     # everything; at most an hour on two cores\nscripts/conformance.sh --group ucx                   # one group\nscripts/conformance.sh --run 'write_bw/-[abe]'       # cases by pattern; what each says with --verbose\nscripts/conformance.sh --list                        # the cases and their commands\n```\n\n")
	fmt.Fprintf(&b, "%s. %.0f minutes. %s.\n\n", r.Machine, r.Seconds/60, strings.Join(r.Programs, ", "))
	b.WriteString("Programs run as an ordinary user with 64 KiB of lockable memory. *Limit* means: it fails, as it must, for want of something that the program, rdma-core's rxe provider or every Soft-RoCE " +
		"device lacks; where it says so, the same command failed with the same words on the kernel's rxe in a virtual machine.\n\n")
	b.WriteString("| | pass | fail | limit | skip |\n|---|---|---|---|---|\n")
	row := func(title, group string) {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |\n", title, r.count(group, passed), r.count(group, failed), r.count(group, limited), r.count(group, skipped))
	}
	for _, g := range groups {
		row(fmt.Sprintf("[%s](#%s)", g.title, anchor(g.title)), g.name)
	}
	if len(suite) > 0 {
		fmt.Fprintf(&b, "| [%s](#%s) | %d | %d | | %d |\n", suiteTitle, anchor(suiteTitle), suiteCount(suite, "pass"), suiteCount(suite, "fail", "error"), suiteCount(suite, "skip"))
	}
	if matrix != "" {
		fmt.Fprintf(&b, "| [%s](#%s): see there | | | | |\n", interop.Title, anchor(interop.Title))
	}
	row("all programs", "")
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n\n", g.title)
		if g.about != "" {
			b.WriteString(g.about + "\n\n")
		}
		r.table(&b, g.name)
	}
	if len(suite) > 0 {
		suiteTable(&b, suite)
	}
	if matrix != "" {
		b.WriteString("\n" + matrix)
	}
	return b.String()
}

// anchor is the fragment that a heading gets.
func anchor(title string) string {
	return strings.ReplaceAll(strings.NewReplacer(",", "", "'", "", ".", "").Replace(strings.ToLower(title)), " ", "-")
}

// table lists the cases of a group, those that did not pass first.
func (r *report) table(b *strings.Builder, group string) {
	var rows []result
	for _, res := range r.Results {
		if res.Group == group {
			rows = append(rows, res)
		}
	}
	rank := []status{failed, skipped, limited, passed}
	slices.SortStableFunc(rows, func(x, y result) int { return slices.Index(rank, x.Status) - slices.Index(rank, y.Status) })
	b.WriteString("| command | programs on | result |\n|---|---|---|\n")
	for _, res := range rows {
		said := string(res.Status)
		if res.Status == failed {
			said = "**fail**"
		}
		if res.Reason != "" {
			said += ": " + cell(res.Reason)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", strings.ReplaceAll(res.Command, "|", `\|`), res.Layout, said)
	}
}

// cell is text that may stand in a cell of a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(text)
}

const suiteTitle = "rdma-core's Python suite"

// suiteRow is a test of rdma-core's Python suite: its module, name, result (pass, fail, error or skip), the reason of a skip or
// failure, and what the kernel's rxe does there.
type suiteRow struct {
	module, test, result, reason, kernel string
}

// readSuite reads the results of the suite, tab separated with a heading of column names; without the file there are none.
func readSuite(path string) ([]suiteRow, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r := csv.NewReader(f)
	r.Comma, r.LazyQuotes, r.FieldsPerRecord = '\t', true, -1
	records, err := r.ReadAll()
	if err != nil || len(records) == 0 {
		return nil, err
	}
	column := map[string]int{}
	for i, name := range records[0] {
		column[name] = i
	}
	var rows []suiteRow
	for _, rec := range records[1:] {
		field := func(name string) string {
			if i, ok := column[name]; ok && i < len(rec) {
				return rec[i]
			}
			return ""
		}
		rows = append(rows, suiteRow{field("module"), field("test"), field("result"), field("reason"), field("kernel")})
	}
	return rows, nil
}

func suiteCount(rows []suiteRow, results ...string) (n int) {
	for _, r := range rows {
		if slices.Contains(results, r.result) {
			n++
		}
	}
	return n
}

func suiteTable(b *strings.Builder, rows []suiteRow) {
	fmt.Fprintf(b, "\n## %s\n\nThe tests that rdma-core ships with its Python bindings (`python3-pyverbs`).\n\n| test | result | on the kernel's rxe |\n|---|---|---|\n", suiteTitle)
	for _, r := range rows {
		said := r.result
		if said == "fail" || said == "error" {
			said = "**" + said + "**"
		}
		if r.reason != "" {
			said += ": " + cell(r.reason)
		}
		fmt.Fprintf(b, "| %s %s | %s | %s |\n", r.module, r.test, said, cell(r.kernel))
	}
}
