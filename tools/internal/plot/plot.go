// Package plot draws line charts, as SVG and as PNG, for the documentation.
package plot

import (
	"bytes"
	"fmt"
	"html"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math"
	"os"
	"strings"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// Point is a median with its quartiles; Low and High are 0 where there are none.
type Point struct{ X, Y, Low, High float64 }

// Series is one line of a chart.
type Series struct {
	Name   string
	Points []Point
}

// Tick is a mark of the x axis.
type Tick struct {
	At    float64
	Label string
}

// Chart is lines over one axis.
type Chart struct {
	Title, X, Y string
	Ticks       []Tick  // of the x axis, from left to right: they say where it begins and ends
	YLog        bool    // the y axis is logarithmic
	YMin, YMax  float64 // YMax 0: chosen
	Series      []Series
}

// Colors are those of the series, in their order.
var Colors = []color.RGBA{{0x2f, 0x66, 0x90, 255}, {0xe0, 0x7a, 0x1f, 255}, {0x3a, 0x7d, 0x44, 255}, {0xb0, 0x41, 0x3e, 255},
	{0x6b, 0x4c, 0x9a, 255}, {0x8c, 0x6a, 0x3f, 255}, {0xd1, 0x6b, 0xa5, 255}, {0x5f, 0x6b, 0x73, 255}}

var (
	ink   = color.RGBA{0x22, 0x22, 0x22, 255}
	faint = color.RGBA{0xdd, 0xdd, 0xdd, 255}
)

const (
	width, height = 760, 420
	left, right   = 76, 24
	top, bottom   = 44, 58
	textSize      = 13
)

// canvas is what a chart is drawn on.
type canvas interface {
	line(x0, y0, x1, y1, wide float64, c color.RGBA)
	dot(x, y, r float64, c color.RGBA)
	text(x, y float64, anchor float64, s string, c color.RGBA) // anchor: 0 begins at x, 0.5 is in the middle, 1 ends there
}

// WriteFiles writes the chart to base.svg and base.png.
func (c *Chart) WriteFiles(base string) error {
	var s svg
	c.draw(&s)
	if err := os.WriteFile(base+".svg", s.bytes(), 0o644); err != nil {
		return err
	}
	b, err := newBitmap()
	if err != nil {
		return err
	}
	c.draw(b)
	var out bytes.Buffer
	if err := png.Encode(&out, b.img); err != nil {
		return err
	}
	return os.WriteFile(base+".png", out.Bytes(), 0o644)
}

func (c *Chart) draw(on canvas) {
	most := c.YMax
	for _, s := range c.Series {
		for _, p := range s.Points {
			most = max(most, p.Y, p.High)
		}
	}
	ticks, most := c.yTicks(most)
	first, last := c.Ticks[0].At, c.Ticks[len(c.Ticks)-1].At
	x := func(v float64) float64 { return left + (v-first)/(last-first)*(width-left-right) }
	y := func(v float64) float64 {
		part := v / most
		if c.YLog {
			part = math.Log(max(v, c.YMin)/c.YMin) / math.Log(most/c.YMin)
		}
		return height - bottom - part*(height-top-bottom)
	}
	on.text(left, 22, 0, c.Title, ink)
	for _, v := range ticks {
		on.line(left, y(v), width-right, y(v), 1, faint)
		on.text(left-8, y(v)+4, 1, fmt.Sprintf("%g", v), ink)
	}
	for _, t := range c.Ticks {
		on.line(x(t.At), height-bottom, x(t.At), height-bottom+4, 1, ink)
		on.text(x(t.At), height-bottom+20, 0.5, t.Label, ink)
	}
	on.line(left, height-bottom, width-right, height-bottom, 1, ink)
	on.text(left+(width-left-right)/2, height-14, 0.5, c.X, ink)
	on.text(8, top-6, 0, c.Y, ink)
	for i, s := range c.Series {
		col := Colors[i%len(Colors)]
		for k, p := range s.Points {
			if k > 0 {
				before := s.Points[k-1]
				on.line(x(before.X), y(before.Y), x(p.X), y(p.Y), 2, col)
			}
			if p.High > p.Low {
				on.line(x(p.X), y(p.Low), x(p.X), y(p.High), 1, col)
			}
			on.dot(x(p.X), y(p.Y), 3, col)
		}
		at := float64(top + 8 + i*18)
		on.line(width-right-190, at-4, width-right-166, at-4, 2, col)
		on.text(width-right-160, at, 0, s.Name, ink)
	}
}

// yTicks chooses the marks of the y axis, and where it ends.
func (c *Chart) yTicks(most float64) (ticks []float64, end float64) {
	if c.YLog {
		for v := c.YMin; ; v *= 10 {
			ticks = append(ticks, v)
			if v >= most {
				return ticks, v
			}
		}
	}
	step := math.Pow(10, math.Floor(math.Log10(max(most, 1e-9))))
	for _, part := range []float64{0.1, 0.2, 0.5, 1} {
		if most/(step*part) <= 6 {
			step *= part
			break
		}
	}
	for k := 0; ; k++ {
		v := math.Round(float64(k)*step*1e6) / 1e6
		ticks = append(ticks, v)
		if v >= most {
			return ticks, v
		}
	}
}

// svg is a canvas of text.
type svg struct{ b strings.Builder }

func hex(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

func (s *svg) line(x0, y0, x1, y1, wide float64, c color.RGBA) {
	fmt.Fprintf(&s.b, `<path d="M%.1f %.1fL%.1f %.1f" stroke="%s" stroke-width="%g"/>`+"\n", x0, y0, x1, y1, hex(c), wide)
}

func (s *svg) dot(x, y, r float64, c color.RGBA) {
	fmt.Fprintf(&s.b, `<circle cx="%.1f" cy="%.1f" r="%g" fill="%s"/>`+"\n", x, y, r, hex(c))
}

func (s *svg) text(x, y, anchor float64, text string, c color.RGBA) {
	name := "start"
	switch anchor {
	case 0.5:
		name = "middle"
	case 1:
		name = "end"
	}
	fmt.Fprintf(&s.b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">%s</text>`+"\n", x, y, name, hex(c), html.EscapeString(text))
}

func (s *svg) bytes() []byte {
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="%[3]d">
<rect width="%[1]d" height="%[2]d" fill="white"/>
%[4]s</svg>
`, width, height, textSize, s.b.String())
}

// bitmap is a canvas of pixels, two for each unit of length.
type bitmap struct {
	img  *image.RGBA
	face font.Face
}

const scale = 2

func newBitmap() (*bitmap, error) {
	f, err := opentype.Parse(goregular.TTF)
	if err != nil {
		return nil, err
	}
	face, err := opentype.NewFace(f, &opentype.FaceOptions{Size: textSize * scale, DPI: 72})
	if err != nil {
		return nil, err
	}
	img := image.NewRGBA(image.Rect(0, 0, width*scale, height*scale))
	draw.Draw(img, img.Bounds(), image.White, image.Point{}, draw.Src)
	return &bitmap{img, face}, nil
}

// fill fills a polygon.
func (b *bitmap) fill(c color.RGBA, xy ...float64) {
	r := vector.NewRasterizer(width*scale, height*scale)
	r.MoveTo(float32(xy[0]*scale), float32(xy[1]*scale))
	for i := 2; i < len(xy); i += 2 {
		r.LineTo(float32(xy[i]*scale), float32(xy[i+1]*scale))
	}
	r.ClosePath()
	r.Draw(b.img, b.img.Bounds(), image.NewUniform(c), image.Point{})
}

func (b *bitmap) line(x0, y0, x1, y1, wide float64, c color.RGBA) {
	long := math.Hypot(x1-x0, y1-y0)
	if long == 0 {
		return
	}
	dx, dy := (y1-y0)/long*wide/2, -(x1-x0)/long*wide/2
	b.fill(c, x0+dx, y0+dy, x1+dx, y1+dy, x1-dx, y1-dy, x0-dx, y0-dy)
}

func (b *bitmap) dot(x, y, r float64, c color.RGBA) {
	var xy []float64
	for i := range 24 {
		a := float64(i) / 24 * 2 * math.Pi
		xy = append(xy, x+r*math.Cos(a), y+r*math.Sin(a))
	}
	b.fill(c, xy...)
}

func (b *bitmap) text(x, y, anchor float64, s string, c color.RGBA) {
	d := font.Drawer{Dst: b.img, Src: image.NewUniform(c), Face: b.face}
	x = x*scale - anchor*float64(d.MeasureString(s))/64
	d.Dot = fixed.Point26_6{X: fixed.Int26_6(x * 64), Y: fixed.Int26_6(y * scale * 64)}
	d.DrawString(s)
}
