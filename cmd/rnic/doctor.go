package main

import (
	"errors"
	"fmt"
	"os"

	"rnic/internal/doctor"
	"rnic/internal/roce"
	"rnic/internal/sandbox"
)

// stdout is where reports go.
var stdout = os.Stdout

// DoctorCmd is rnic doctor.
type DoctorCmd struct {
	Peer    string `placeholder:"HOST" help:"Examine the way to HOST, where rnic doctor --listen runs, and back."`
	Listen  bool   `help:"Answer rnic doctor --peer of other machines, until interrupted."`
	Addr    string `placeholder:"ADDRESS" help:"With --listen: at this address only."`
	Port    uint16 `default:"4791" help:"UDP port that --peer and --listen look at; the same at both ends."`
	Control uint16 `default:"18516" help:"TCP port by which --peer and --listen talk; the same at both ends."`
	JSON    bool   `name:"json" help:"Print the findings as JSON."`
	Trial   bool   `default:"true" negatable:"" help:"Start a program under the NIC, for the final proof."`
}

// Validate refuses options that contradict each other.
func (d *DoctorCmd) Validate() error {
	switch {
	case d.Listen && d.Peer != "":
		return errors.New("doctor: --listen is for one machine, --peer for the other")
	case d.Listen && d.JSON:
		return errors.New("doctor: --listen has no findings of its own: --json belongs to --peer")
	case d.Addr != "" && !d.Listen:
		return errors.New("doctor: --addr belongs to --listen")
	case d.Port == 0 || d.Control == 0:
		return errors.New("doctor: --port and --control: 1 to 65535")
	case d.Port != roce.Port && d.Peer == "" && !d.Listen:
		return errors.New("doctor: --port belongs to --peer and --listen")
	}
	return nil
}

// print writes a report and makes it an exit code.
func (d *DoctorCmd) print(r doctor.Report, works, fails string) error {
	if d.JSON {
		if err := r.JSON(stdout); err != nil {
			return err
		}
	} else {
		r.Text(stdout, works, fails)
	}
	if !r.Works {
		return &runError{1, nil}
	}
	return nil
}

// withDoctor says in errors of a NIC that could not be made where to look.
func withDoctor(err error) error {
	if err == nil || os.Getenv(doctor.TrialEnv) != "" || errors.Is(err, sandbox.ErrNotFound) || errors.Is(err, sandbox.ErrNotExecutable) || errors.Is(err, sandbox.ErrSupervisorDied) ||
		errors.Is(err, sandbox.ErrNested) || errors.Is(err, sandbox.ErrNICDied) || errors.Is(err, sandbox.ErrOptions) || errors.Is(err, sandbox.ErrJudged) {
		return err
	}
	return fmt.Errorf("%w (rnic doctor looks at what is missing here)", err)
}
