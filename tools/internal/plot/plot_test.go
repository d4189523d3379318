package plot

import (
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Both files show the chart: the SVG has the words, the PNG the colours of the lines.
func TestWriteFiles(t *testing.T) {
	c := Chart{Title: "a <title>", X: "loss", Y: "GB/s", Ticks: []Tick{{0, "0"}, {1, "1 %"}},
		Series: []Series{{"one", []Point{{0, 2, 1.5, 2.5}, {1, 1, 0, 0}}}, {"two", []Point{{0, 1, 0, 0}, {1, 2, 0, 0}}}}}
	for _, log := range []bool{false, true} {
		c.YLog, c.YMin = log, 0.1
		base := filepath.Join(t.TempDir(), "chart")
		if err := c.WriteFiles(base); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(base + ".svg")
		if err != nil || !strings.Contains(string(text), "a &lt;title&gt;") || !strings.Contains(string(text), ">two<") {
			t.Errorf("SVG %v: %.200s", err, text)
		}
		f, err := os.Open(base + ".png")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		img, err := png.Decode(f)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[[3]uint32]int{}
		for y := range img.Bounds().Dy() {
			for x := range img.Bounds().Dx() {
				r, g, b, _ := img.At(x, y).RGBA()
				seen[[3]uint32{r >> 8, g >> 8, b >> 8}]++
			}
		}
		for i := range c.Series {
			col := Colors[i]
			if seen[[3]uint32{uint32(col.R), uint32(col.G), uint32(col.B)}] < 100 {
				t.Errorf("series %d is not to be seen", i)
			}
		}
	}
}
