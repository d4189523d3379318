package plot

import (
	"fmt"
	"html"
	"io"
	"strings"
)

// SVG writes the figure as SVG. An error that is ErrFigure is the figure's; others are w's.
func (f *Figure) SVG(w io.Writer) error {
	var c svgCanvas
	if err := f.draw(&c); err != nil {
		return err
	}
	wide, high := f.size()
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif">
%[3]s</svg>
`, wide, high, c.b.String())
	return err
}

type svgCanvas struct{ b strings.Builder }

func (c *svgCanvas) line(points []point, width float64, color string) {
	if len(points) < 2 {
		return
	}
	fmt.Fprintf(&c.b, `<path fill="none" stroke-linejoin="round" stroke-width="%g" stroke="%s" d="`, width, color)
	for i, p := range points {
		command := "L"
		if i == 0 {
			command = "M"
		}
		fmt.Fprintf(&c.b, "%s%.1f %.1f", command, p.x, p.y)
	}
	c.b.WriteString("\"/>\n")
}

func (c *svgCanvas) rect(x, y, w, h float64, color string) {
	fmt.Fprintf(&c.b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, w, h, color)
}

func (c *svgCanvas) dot(at point, radius float64, color string) {
	fmt.Fprintf(&c.b, `<circle cx="%.1f" cy="%.1f" r="%g" fill="%s"/>`+"\n", at.x, at.y, radius, color)
}

func (c *svgCanvas) text(x, y, size float64, a anchor, color, text string) {
	if text == "" {
		return
	}
	fmt.Fprintf(&c.b, `<text x="%.1f" y="%.1f" font-size="%g" text-anchor="%s" fill="%s">%s</text>`+"\n",
		x, y, size, [...]string{"start", "middle", "end"}[a], color, html.EscapeString(text))
}
