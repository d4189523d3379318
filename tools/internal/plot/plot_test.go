package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/color"
	"image/png"
	"io"
	"strings"
	"testing"
)

func example() *Figure {
	return &Figure{Panels: []Panel{
		{Title: "Lines <and> more", X: Axis{Label: "loss", Log: true}, Y: Axis{Label: "Gb/s", Max: 8}, Series: []Series{
			{Name: "one", X: []float64{0.1, 1, 10}, Y: []float64{8, 8, 8}, Color: "#ff0000", Marks: true},
			{Name: "two", X: []float64{0.1, 1, 10}, Y: []float64{1, 2, 3}, Low: []float64{0.5, 1, 2}, High: []float64{2, 3, 4}}}},
		{Title: "Bars", Groups: []string{"a", "b"}, Y: Axis{Label: "us", Log: true},
			Series: []Series{{Y: []float64{1, 100}, Color: "#00ff00"}}},
	}}
}

// A program that reads XML reads the SVG, and finds what it says.
func TestSVGIsXML(t *testing.T) {
	var b bytes.Buffer
	if err := example().SVG(&b); err != nil {
		t.Fatal(err)
	}
	var words strings.Builder
	for d := xml.NewDecoder(&b); ; {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := tok.(xml.CharData); ok {
			words.Write(c)
		}
	}
	for _, want := range []string{"Lines <and> more", "loss", "Gb/s", "one", "two", "0.1", "Bars", "100"} {
		if !strings.Contains(words.String(), want) {
			t.Errorf("%q is not in the figure", want)
		}
	}
}

// The PNG shows the line at 8 of 8 along the top of its panel only, and the bar of 100 on a scale of 1 to 100 as high as the panel.
func TestPNGShowsTheSame(t *testing.T) {
	var b bytes.Buffer
	if err := example().PNG(&b); err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(&b)
	if err != nil {
		t.Fatal(err)
	}
	count := func(c color.RGBA, y0, y1 int) (n int) {
		for y := y0; y < y1; y++ {
			for x := range img.Bounds().Dx() {
				if color.RGBAModel.Convert(img.At(x, y)) == c {
					n++
				}
			}
		}
		return n
	}
	red, green := color.RGBA{255, 0, 0, 255}, color.RGBA{0, 255, 0, 255}
	inside := (top + legendLine) * pngScale
	if n := count(red, inside-10, inside+10); n < 1000 {
		t.Errorf("the line at the top has %d pixels", n)
	}
	if n := count(red, inside+10, img.Bounds().Dy()); n != 0 {
		t.Errorf("%d pixels of the line lie where it is not", n)
	}
	second := (top + legendLine + 220 + bottom + top) * pngScale
	if n := count(green, second+2, second+4); n < 200 {
		t.Errorf("the bar of 100 has %d pixels at the top", n)
	}
	if n := count(green, second, second+440); n < 100*438 {
		t.Errorf("the bars have %d pixels", n)
	}
}

// What cannot be drawn is refused.
func TestImpossibleFigures(t *testing.T) {
	for name, change := range map[string]func(f *Figure){
		"no panels":      func(f *Figure) { f.Panels = nil },
		"points differ":  func(f *Figure) { f.Panels[0].Series[0].X = []float64{1} },
		"groups differ":  func(f *Figure) { f.Panels[1].Groups = []string{"a"} },
		"whiskers":       func(f *Figure) { f.Panels[0].Series[1].Low = []float64{1} },
		"log of nothing": func(f *Figure) { f.Panels[0].X = Axis{Log: true, Min: 0, Max: 1} },
		"empty":          func(f *Figure) { f.Panels[0].Series = nil },
		"color":          func(f *Figure) { f.Panels[0].Series[0].Color = "red" },
	} {
		f := example()
		change(f)
		if err := f.SVG(io.Discard); !errors.Is(err, ErrFigure) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A legend that is too long for one line goes on in the next, and the picture is higher by that.
func TestLegendInLines(t *testing.T) {
	panel := Panel{Title: "t", X: Axis{Label: "x"}, Y: Axis{Label: "y"}}
	height := func() int {
		_, h := (&Figure{Panels: []Panel{panel}}).size()
		return h
	}
	name := strings.Repeat("name ", 8)
	var heights []int
	for range 7 {
		panel.Series = append(panel.Series, Series{Name: name, X: []float64{1, 2}, Y: []float64{1, 2}})
		heights = append(heights, height()-height0(panel))
	}
	places, lines := panel.legendPlaces(840 - left - right)
	if lines < 3 || heights[0] != legendLine || heights[6] != lines*legendLine {
		t.Errorf("%d lines, heights %v", lines, heights)
	}
	for i, at := range places {
		if end := left + at.x + 24 + textWidth(name, normal); end > 840 {
			t.Errorf("name %d ends at %v, outside of the picture", i, end)
		}
	}
}

// height0 is the height without a legend.
func height0(p Panel) int {
	p.Series = nil
	_, h := (&Figure{Panels: []Panel{p}}).size()
	return h
}
