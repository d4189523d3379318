package plot

import (
	"fmt"
	"math"
)

// An Axis goes from Min to Max; if both are 0, it goes over the data, and from 0 on if it is linear.
type Axis struct {
	Label    string
	Min, Max float64
	Log      bool   // to the base 10; values that are not positive are left out
	Ticks    []Tick // if nil, round numbers
}

// A Tick is a mark on an axis.
type Tick struct {
	At    float64
	Label string
}

// A scale turns values into pixels.
type scale struct {
	min, max, from, to float64
	log                bool
	ticks              []Tick
}

func (a *Axis) scale(values []float64, from, to float64) (*scale, error) {
	s := &scale{min: a.Min, max: a.Max, from: from, to: to, log: a.Log, ticks: a.Ticks}
	if s.min == 0 && s.max == 0 {
		s.span(values)
	}
	if !(s.min < s.max) || s.log && s.min <= 0 || math.IsInf(s.max-s.min, 0) {
		return nil, fmt.Errorf("from %g to %g: %w", s.min, s.max, ErrFigure)
	}
	if s.ticks == nil {
		s.ticks = s.round()
	}
	return s, nil
}

// span makes the scale reach over the values.
func (s *scale) span(values []float64) {
	s.min, s.max = math.Inf(1), math.Inf(-1)
	for _, v := range values {
		if s.has(v) {
			s.min, s.max = min(s.min, v), max(s.max, v)
		}
	}
	if s.min > s.max {
		return // no values
	}
	if s.log {
		s.min, s.max = math.Pow(10, math.Floor(math.Log10(s.min)+1e-9)), math.Pow(10, math.Ceil(math.Log10(s.max)-1e-9))
		if s.min == s.max {
			s.max *= 10
		}
		return
	}
	s.min = min(s.min, 0)
	step := s.step()
	s.max = math.Ceil(s.max/step-1e-9) * step
	if s.max == s.min {
		s.max++
	}
}

// step is 1, 2 or 5 times a power of ten, about a fifth of the scale.
func (s *scale) step() float64 {
	if !(s.max > s.min) {
		return 1
	}
	raw := (s.max - s.min) / 5
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, f := range []float64{1, 2, 5} {
		if raw <= f*power*1.001 {
			return f * power
		}
	}
	return 10 * power
}

// round are the ticks at round numbers.
func (s *scale) round() (t []Tick) {
	if s.log {
		for v := math.Pow(10, math.Ceil(math.Log10(s.min)-1e-9)); v <= s.max*1.001; v *= 10 {
			t = append(t, Tick{v, fmt.Sprintf("%g", v)})
		}
		return t
	}
	step := s.step()
	for i := math.Ceil(s.min/step - 1e-9); i*step <= s.max+step/1000; i++ {
		at := i*step + 0 // never -0
		t = append(t, Tick{at, fmt.Sprintf("%.10g", at)})
	}
	return t
}

func (s *scale) has(v float64) bool { return !math.IsNaN(v) && (v > 0 || !s.log) }

// at is where a value lies; what is beyond an end lies at that end.
func (s *scale) at(v float64) float64 {
	v = min(max(v, s.min), s.max)
	low, high := s.min, s.max
	if s.log {
		v, low, high = math.Log10(v), math.Log10(low), math.Log10(high)
	}
	return s.from + (v-low)/(high-low)*(s.to-s.from)
}
