package main

import (
	"fmt"
	"path/filepath"

	"github.com/alecthomas/kong"
)

// jsonFile is the option --json, alone or as --json=FILE.
type jsonFile struct {
	On   bool
	Path string // "": standard error
}

// IsBool implements kong.BoolMapperValue: the option needs no value.
func (*jsonFile) IsBool() bool { return true }

// Decode implements kong.MapperValue.
func (j *jsonFile) Decode(ctx *kong.DecodeContext) error {
	j.On = true
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		return nil
	}
	s, ok := ctx.Scan.Pop().Value.(string)
	if !ok || s == "" {
		return fmt.Errorf("a file name must follow --json=")
	}
	var err error
	j.Path, err = filepath.Abs(s)
	return err
}
