package plot

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"math"
	"sync"

	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/opentype"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// pngScale is how many pixels of the PNG one of the SVG has on each side.
const pngScale = 2

// PNG writes the figure as PNG. An error that is ErrFigure is the figure's; others are w's.
func (f *Figure) PNG(w io.Writer) error {
	wide, high := f.size()
	if wide > 10_000 || high > 10_000 {
		return fmt.Errorf("%d x %d pixels: %w", wide, high, ErrFigure)
	}
	c := &pngCanvas{img: image.NewRGBA(image.Rect(0, 0, wide*pngScale, high*pngScale))}
	if err := f.draw(c); err != nil {
		return err
	}
	e := png.Encoder{CompressionLevel: png.BestCompression}
	return e.Encode(w, c.img)
}

type pngCanvas struct{ img *image.RGBA }

func paint(s string) image.Image {
	var c color.RGBA
	fmt.Sscanf(s, "#%02x%02x%02x", &c.R, &c.G, &c.B)
	c.A = 255
	return image.NewUniform(c)
}

// fill fills polygons, all of them turning the same way.
func (c *pngCanvas) fill(s string, polygons ...[]point) {
	box := around(polygons).Intersect(c.img.Bounds())
	if box.Empty() {
		return
	}
	r := vector.NewRasterizer(box.Dx(), box.Dy())
	at := func(p point) (x, y float32) {
		return float32(p.x*pngScale - float64(box.Min.X)), float32(p.y*pngScale - float64(box.Min.Y))
	}
	for _, p := range polygons {
		r.MoveTo(at(p[0]))
		for _, q := range p[1:] {
			r.LineTo(at(q))
		}
		r.ClosePath()
	}
	r.Draw(c.img, box, paint(s), image.Point{})
}

// around is the smallest rectangle of pixels that holds all polygons.
func around(polygons [][]point) (box image.Rectangle) {
	for _, p := range polygons {
		for _, q := range p {
			x, y := q.x*pngScale, q.y*pngScale
			box = box.Union(image.Rect(int(math.Floor(x)), int(math.Floor(y)), int(math.Floor(x))+1, int(math.Floor(y))+1))
		}
	}
	return box
}

func (c *pngCanvas) line(points []point, width float64, s string) {
	if len(points) < 2 {
		return
	}
	var all [][]point
	for i, q := range points[1:] {
		p := points[i]
		d := math.Hypot(q.x-p.x, q.y-p.y)
		if d == 0 {
			continue
		}
		nx, ny := -(q.y-p.y)/d*width/2, (q.x-p.x)/d*width/2
		all = append(all, []point{{p.x - nx, p.y - ny}, {q.x - nx, q.y - ny}, {q.x + nx, q.y + ny}, {p.x + nx, p.y + ny}})
		if i > 0 {
			all = append(all, disc(p, width/2)) // joins the lines
		}
	}
	if len(all) > 0 {
		c.fill(s, all...)
	}
}

// disc turns the way that the pieces of a line do.
func disc(at point, radius float64) (p []point) {
	const corners = 24
	for i := range corners {
		a := 2 * math.Pi * float64(i) / corners
		p = append(p, point{at.x + radius*math.Cos(a), at.y + radius*math.Sin(a)})
	}
	return p
}

func (c *pngCanvas) dot(at point, radius float64, s string) { c.fill(s, disc(at, radius)) }

func (c *pngCanvas) rect(x, y, w, h float64, s string) {
	px := func(v float64) int { return int(math.Round(v * pngScale)) }
	draw.Draw(c.img, image.Rect(px(x), px(y), px(x+w), px(y+h)), paint(s), image.Point{}, draw.Src)
}

func (c *pngCanvas) text(x, y, size float64, a anchor, s, text string) {
	d := font.Drawer{Dst: c.img, Src: paint(s), Face: face(size * pngScale)}
	at := x * pngScale
	width := float64(d.MeasureString(text)) / 64
	switch a {
	case middle:
		at -= width / 2
	case end:
		at -= width
	}
	d.Dot = fixed.Point26_6{X: fixed.Int26_6(at * 64), Y: fixed.Int26_6(y * pngScale * 64)}
	d.DrawString(text)
}

// textWidth is the width of a text in pixels of the SVG, whose reader may use another font: a little more.
func textWidth(text string, size float64) float64 {
	return float64(font.MeasureString(face(size), text)) / 64 * 1.08
}

var goFont = sync.OnceValue(func() *opentype.Font {
	f, err := opentype.Parse(goregular.TTF)
	if err != nil {
		panic("plot: the Go font cannot be read: " + err.Error()) // it is part of the program
	}
	return f
})

func face(size float64) font.Face {
	f, err := opentype.NewFace(goFont(), &opentype.FaceOptions{Size: size, DPI: 72, Hinting: font.HintingNone})
	if err != nil {
		panic("plot: the Go font has no size " + fmt.Sprint(size) + ": " + err.Error())
	}
	return f
}
