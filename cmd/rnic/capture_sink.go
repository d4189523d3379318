package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"rnic/internal/link/capture"
	"rnic/internal/perf"
)

// captureSink is where the blocks of a capture go.
type captureSink interface {
	open() error
	block(kind uint32, b []byte) error
	close() error
}

const (
	defaultRingSize = 64 << 20
	maxRing         = 100_000
)

// sink is what the options ask for.
func (c *CaptureCmd) sink() (captureSink, error) {
	usage := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{perf.ErrUsage}, args...)...)
	}
	size, err := parseSize(c.Size, defaultRingSize)
	if err != nil {
		return nil, usage("--size %s: %w", c.Size, err)
	}
	memory, err := parseSize(c.Memory, 0)
	if err != nil {
		return nil, usage("--memory %s: %w", c.Memory, err)
	}
	switch {
	case c.Ring < 0 || c.Ring > maxRing:
		return nil, usage("--ring %d: 1 to %d files are possible", c.Ring, maxRing)
	case c.Duration < 0:
		return nil, usage("--duration %v: no time", c.Duration)
	case c.Size != "" && c.Ring == 0:
		return nil, usage("--size goes with --ring")
	case c.Ring > 0 && memory > 0:
		return nil, usage("--ring and --memory exclude each other")
	case (c.Ring > 0 || memory > 0) && (c.Write == "" || c.Write == "-"):
		return nil, usage("--ring and --memory need a file: -w FILE")
	case c.Write == "":
		return newTextSink(os.Stdout), nil
	case c.Ring > 0:
		return &ringSink{path: c.Write, files: c.Ring, size: size}, nil
	case memory > 0:
		return newMemorySink(c.Write, memory), nil
	}
	return &fileSink{path: c.Write}, nil
}

// parseSize reads a number of bytes, with K, M or G for its binary multiples.
func parseSize(s string, without int64) (int64, error) {
	if s == "" {
		return without, nil
	}
	digits, shift := strings.TrimSuffix(strings.ToUpper(s), "B"), 0
	for unit, n := range map[string]int{"K": 10, "M": 20, "G": 30} {
		if d, ok := strings.CutSuffix(strings.TrimSuffix(digits, "I"), unit); ok {
			digits, shift = d, n
			break
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n <= 0 || n > 1<<(40-shift) {
		return 0, errors.New("a size such as 500K, 64M or 2G is needed")
	}
	return n << shift, nil
}

// createCapture makes a file that only its owner may read: packets carry the programs' data.
func createCapture(path string) (*os.File, error) {
	f, _, err := capture.OpenPrivate(filepath.Clean(path))
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return f, nil
}

// fileSink is one file, or standard output.
type fileSink struct {
	path string
	f    *os.File
}

func (s *fileSink) open() (err error) {
	if s.path == "-" {
		s.f = os.Stdout
		return nil
	}
	s.f, err = createCapture(s.path)
	return err
}

func (s *fileSink) block(_ uint32, b []byte) error {
	_, err := s.f.Write(b)
	return err
}

func (s *fileSink) close() error { return s.f.Close() }

// numbered is the path of file n of several: f.pcapng, 3: f-00003.pcapng.
func numbered(path string, n int) string {
	ext := filepath.Ext(path)
	return fmt.Sprintf("%s-%05d%s", strings.TrimSuffix(path, ext), n, ext)
}

// numbersOf are the numbers of the files that numbered has named and that are there, in order.
func numbersOf(path string) (list []int, err error) {
	dir, base := filepath.Split(filepath.Clean(path))
	ext := filepath.Ext(base)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name(), ext)
		if digits, ok = cutPrefix(digits, strings.TrimSuffix(base, ext)+"-", ok); !ok {
			continue
		}
		if n, err := strconv.Atoi(digits); err == nil && n > 0 && numbered(base, n) == e.Name() && e.Type().IsRegular() {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list, nil
}

func cutPrefix(s, prefix string, ok bool) (string, bool) {
	if !ok {
		return "", false
	}
	return strings.CutPrefix(s, prefix)
}

// ringSink is a ring of files, each of which can be read alone. Those that are there of a run before are of the ring: it goes on behind them.
type ringSink struct {
	path  string
	files int
	size  int64

	f      *os.File
	n      int    // the number of the current file
	there  []int  // the numbers of all, the oldest first
	used   int64  // bytes of the current one
	header []byte // of every file: what is not packets
}

func (s *ringSink) open() (err error) {
	if s.there, err = numbersOf(s.path); err != nil {
		return err
	}
	if len(s.there) > 0 {
		s.n = s.there[len(s.there)-1]
		fmt.Fprintf(os.Stderr, "%d files of this name are there: the ring goes on behind %s.\n", len(s.there), numbered(s.path, s.n))
	}
	return s.next()
}

// next begins a file, and removes what falls out of the ring.
func (s *ringSink) next() (err error) {
	if s.f != nil {
		if err := s.f.Close(); err != nil {
			return err
		}
	}
	s.n++
	if s.f, err = createCapture(numbered(s.path, s.n)); err != nil {
		return err
	}
	s.there = append(s.there, s.n)
	for ; len(s.there) > s.files; s.there = s.there[1:] {
		if err := os.Remove(numbered(s.path, s.there[0])); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	s.used = int64(len(s.header))
	_, err = s.f.Write(s.header)
	return err
}

func (s *ringSink) block(kind uint32, b []byte) error {
	switch {
	case kind != blockPacket && kind != blockStats:
		s.header = append(s.header, b...)
	case s.used+int64(len(b)) > s.size && s.used > int64(len(s.header)):
		if err := s.next(); err != nil {
			return err
		}
	}
	s.used += int64(len(b))
	_, err := s.f.Write(b)
	return err
}

func (s *ringSink) close() error { return s.f.Close() }

// memorySink keeps the last packets in memory.
type memorySink struct {
	path string
	size int64

	mu     sync.Mutex
	header []byte
	blocks [][]byte
	used   int64
	dumps  int
}

// open has the numbered files go on behind those of a run before.
func (s *memorySink) open() error {
	there, err := numbersOf(s.path)
	if err != nil || len(there) == 0 {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dumps = max(s.dumps, there[len(there)-1])
	return nil
}

func newMemorySink(path string, size int64) *memorySink {
	s := &memorySink{path: path, size: size}
	signal := dumpSignal() // from now on it does not end the program
	go func() {
		for range signal {
			s.mu.Lock()
			s.dumps++
			if err := s.dump(numbered(s.path, s.dumps)); err != nil {
				fmt.Fprintf(os.Stderr, "rnic: %v\n", err)
			}
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *memorySink) block(kind uint32, b []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kind != blockPacket {
		if kind != blockStats {
			s.header = append(s.header, b...)
		}
		return nil
	}
	s.blocks = append(s.blocks, b)
	for s.used += int64(len(b)); s.used > s.size && len(s.blocks) > 1; s.blocks = s.blocks[1:] {
		s.used -= int64(len(s.blocks[0]))
		s.blocks[0] = nil // the array keeps it else until it grows
	}
	return nil
}

// dump writes a file. The caller holds mu.
func (s *memorySink) dump(path string) error {
	f, err := createCapture(path)
	if err != nil {
		return err
	}
	_, err = f.Write(s.header)
	for _, b := range s.blocks {
		if err == nil {
			_, err = f.Write(b)
		}
	}
	if e := f.Close(); err == nil {
		err = e
	}
	fmt.Fprintf(os.Stderr, "%d packets written to %s\n", len(s.blocks), path)
	return err
}

func (s *memorySink) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dump(s.path)
}
