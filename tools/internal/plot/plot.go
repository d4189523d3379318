// Package plot draws figures of panels one above the other, each with lines or bars over two axes, as SVG and as PNG. Both come from
// the same calls, so that they show the same.
package plot

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
)

// A Figure is one picture.
type Figure struct {
	Panels []Panel
	Width  int // of the picture, in pixels of the SVG [840]; the PNG has twice as many
}

// A Panel is one diagram.
type Panel struct {
	Title  string
	X, Y   Axis
	Series []Series
	Height int // of the inside, in pixels [220]

	// Groups makes it a bar diagram: the names along the X axis. Each series has a bar in each group, Y[i] high; X is not used.
	Groups []string
}

// A Series is a line through points, or a row of bars.
type Series struct {
	Name string // in the legend; if empty, it is not there
	X, Y []float64

	// Low and High, if set, are drawn as a whisker at each point: quartiles, say.
	Low, High []float64

	Color string // "#rrggbb"; if empty, the next of Colors
	Marks bool   // a dot at each point
}

// Colors are told apart on white.
var Colors = []string{"#2f6690", "#e07a1f", "#3a7d44", "#b0413e", "#6b4c9a", "#8c6a3f", "#d16ba5", "#5f6b73"}

// ErrFigure is of a figure that cannot be drawn: the error says why.
var ErrFigure = errors.New("figure cannot be drawn")

// WriteFiles writes base.svg and base.png. An error that is ErrFigure is the figure's.
func (f *Figure) WriteFiles(base string) error {
	for _, out := range []struct {
		suffix string
		write  func(io.Writer) error
	}{{".svg", f.SVG}, {".png", f.PNG}} {
		var b bytes.Buffer
		if err := out.write(&b); err != nil {
			return fmt.Errorf("draw %s%s: %w", base, out.suffix, err)
		}
		if err := os.WriteFile(base+out.suffix, b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Pixels of the SVG.
const (
	left, right       = 64, 20
	top, bottom       = 52, 50
	titleSize, normal = 14, 12
	legendLine        = 18
)

func (f *Figure) size() (w, h int) {
	w = cmp.Or(f.Width, 840)
	for i := range f.Panels {
		h += f.Panels[i].outer(float64(w - left - right))
	}
	return w, h
}

func (p *Panel) outer(width float64) int {
	return top + p.legend(width) + cmp.Or(p.Height, 220) + bottom
}

// legend is the height of the legend of a panel so wide inside, which stands above the diagram.
func (p *Panel) legend(width float64) int {
	places, lines := p.legendPlaces(width)
	if len(places) == 0 {
		return 0
	}
	return lines * legendLine
}

// legendPlaces is where each named series, by number, stands in the legend, from its upper left corner, and how many lines it has.
func (p *Panel) legendPlaces(width float64) (places map[int]point, lines int) {
	places, lines = map[int]point{}, 1
	x := 0.
	for i, s := range p.Series {
		if s.Name == "" {
			continue
		}
		w := 24 + textWidth(s.Name, normal)
		if x > 0 && x+w > width {
			x = 0
			lines++
		}
		places[i] = point{x, float64((lines - 1) * legendLine)}
		x += w + 22
	}
	return places, lines
}

// canvas is what the formats draw. Coordinates are pixels of the SVG, y downwards.
type canvas interface {
	line(points []point, width float64, color string)
	rect(x, y, w, h float64, color string)
	dot(at point, radius float64, color string)
	text(x, y, size float64, anchor anchor, color, text string)
}

type point struct{ x, y float64 }

type anchor int

const (
	start anchor = iota
	middle
	end
)

const (
	ink  = "#222222"
	grid = "#dddddd"
)

func (f *Figure) draw(c canvas) error {
	w, h := f.size()
	if len(f.Panels) == 0 || w <= left+right {
		return fmt.Errorf("%d panels, %d wide: %w", len(f.Panels), w, ErrFigure)
	}
	c.rect(0, 0, float64(w), float64(h), "#ffffff")
	y := 0
	for i := range f.Panels {
		p := &f.Panels[i]
		if err := p.draw(c, float64(y), float64(w-left-right)); err != nil {
			return fmt.Errorf("panel %q: %w", p.Title, err)
		}
		y += p.outer(float64(w - left - right))
	}
	return nil
}

func (p *Panel) draw(c canvas, y0, width float64) error {
	height := float64(cmp.Or(p.Height, 220))
	inside := y0 + float64(top+p.legend(width))
	if err := p.check(); err != nil {
		return err
	}
	xs, err := p.X.scale(p.values(func(s *Series) [][]float64 { return [][]float64{s.X} }), left, left+width)
	if err != nil && p.Groups == nil {
		return fmt.Errorf("axis X: %w", err)
	}
	ys, err := p.Y.scale(p.values(func(s *Series) [][]float64 { return [][]float64{s.Y, s.Low, s.High} }), inside+height, inside)
	if err != nil {
		return fmt.Errorf("axis Y: %w", err)
	}
	c.text(left, y0+22, titleSize, start, ink, p.Title)
	c.text(left, y0+42, normal, start, ink, p.Y.Label)
	p.drawLegend(c, y0+42+legendLine, width)
	for _, t := range ys.ticks {
		c.rect(left, ys.at(t.At), width, 1, grid)
		c.text(left-8, ys.at(t.At)+4, normal, end, ink, t.Label)
	}
	c.text(left+width/2, inside+height+38, normal, middle, ink, p.X.Label)
	if p.Groups != nil {
		p.drawBars(c, ys, width, inside+height)
	} else {
		for _, t := range xs.ticks {
			c.rect(xs.at(t.At), inside+height, 1, 5, ink)
			c.text(xs.at(t.At), inside+height+19, normal, middle, ink, t.Label)
		}
		p.drawLines(c, xs, ys)
	}
	c.rect(left, inside+height, width, 1, ink)
	return nil
}

func (p *Panel) check() error {
	for i := range p.Series {
		s := &p.Series[i]
		n := len(s.Y)
		switch {
		case p.Groups != nil && n != len(p.Groups), p.Groups == nil && n != len(s.X):
			return fmt.Errorf("series %q has %d values, for %d points and %d groups: %w", s.Name, n, len(s.X), len(p.Groups), ErrFigure)
		case s.Low != nil && len(s.Low) != n, s.High != nil && len(s.High) != n:
			return fmt.Errorf("series %q has %d values, but %d and %d ends of whiskers: %w", s.Name, n, len(s.Low), len(s.High), ErrFigure)
		case s.Color != "" && len(s.Color) != len("#rrggbb"):
			return fmt.Errorf("series %q: color %q is not #rrggbb: %w", s.Name, s.Color, ErrFigure)
		}
	}
	return nil
}

func (p *Panel) values(of func(*Series) [][]float64) (all []float64) {
	for i := range p.Series {
		for _, v := range of(&p.Series[i]) {
			all = append(all, v...)
		}
	}
	return all
}

func (p *Panel) color(i int) string { return cmp.Or(p.Series[i].Color, Colors[i%len(Colors)]) }

func (p *Panel) drawLegend(c canvas, y, width float64) {
	places, _ := p.legendPlaces(width)
	for i, s := range p.Series {
		if at, named := places[i]; named {
			c.rect(left+at.x, y+at.y-8, 18, 6, p.color(i))
			c.text(left+at.x+24, y+at.y, normal, start, ink, s.Name)
		}
	}
}

func (p *Panel) drawLines(c canvas, xs, ys *scale) {
	for i, s := range p.Series {
		var points []point
		for k := range s.Y {
			if !xs.has(s.X[k]) || !ys.has(s.Y[k]) {
				continue
			}
			at := point{xs.at(s.X[k]), ys.at(s.Y[k])}
			points = append(points, at)
			s.whisker(c, ys, k, at.x, p.color(i))
			if s.Marks {
				c.dot(at, 3.5, p.color(i))
			}
		}
		c.line(points, 1.6, p.color(i))
	}
}

func (p *Panel) drawBars(c canvas, ys *scale, width, bottom float64) {
	group := width / float64(len(p.Groups))
	bar := min(group*0.8/float64(max(1, len(p.Series))), 60)
	for g, name := range p.Groups {
		mid := left + (float64(g)+0.5)*group
		c.text(mid, bottom+19, normal, middle, ink, name)
		for i, s := range p.Series {
			if !ys.has(s.Y[g]) {
				continue
			}
			x := mid + (float64(i)-float64(len(p.Series))/2)*bar
			y := ys.at(s.Y[g])
			c.rect(x+1, y, bar-2, bottom-y, p.color(i))
			s.whisker(c, ys, g, x+bar/2, ink)
		}
	}
}

// whisker goes from Low to High.
func (s *Series) whisker(c canvas, ys *scale, k int, x float64, color string) {
	if s.Low == nil || s.High == nil || !ys.has(s.Low[k]) || !ys.has(s.High[k]) {
		return
	}
	low, high := ys.at(s.Low[k]), ys.at(s.High[k])
	c.line([]point{{x, low}, {x, high}}, 1.2, color)
	for _, y := range []float64{low, high} {
		c.line([]point{{x - 4, y}, {x + 4, y}}, 1.2, color)
	}
}
