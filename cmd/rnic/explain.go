package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"rnic/internal/explain"
)

// ExplainCmd is rnic explain.
type ExplainCmd struct {
	File string `arg:"" help:"A capture, pcap or pcapng, of any RoCEv2 traffic; - for standard input."`
	JSON bool   `name:"json" help:"Print a JSON object."`
}

// Help is what kong prints below the options' short form.
func (*ExplainCmd) Help() string {
	return `The capture may come from rnic capture, tcpdump or Wireshark, and from hardware: rnic explain says which packets were lost, which requests were refused and why, and what to do.

Examples:
  rnic explain f.pcapng
  tcpdump -i eth0 -w f.pcap udp port 4791 or arp or icmp    (then: rnic explain f.pcap)`
}

// Run explains.
func (c *ExplainCmd) Run() error {
	var in io.Reader = os.Stdin
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return fmt.Errorf("explain: %w", err)
		}
		defer f.Close()
		in = f
	}
	report, err := explain.Explain(in)
	if report == nil {
		return fmt.Errorf("explain %s: %w", c.File, err)
	}
	if c.JSON {
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		if werr := e.Encode(report); werr != nil {
			return werr
		}
	} else if werr := report.Write(os.Stdout); werr != nil {
		return werr
	}
	if err != nil {
		return fmt.Errorf("explain %s: the report is of what came before this: %w", c.File, err)
	}
	return nil
}
