package explain

import (
	"os"
	"testing"
)

func TestShow(t *testing.T) {
	for _, name := range []string{"nak", "rping", "raw", "frames"} {
		f, err := os.Open("../roce/testdata/" + name + ".pcap")
		if err != nil {
			t.Fatal(err)
		}
		r, err := Explain(f)
		if err != nil {
			t.Fatal(err)
		}
		os.Stdout.WriteString("\n=== " + name + "\n")
		r.Write(os.Stdout)
	}
}
