//go:build !linux

package main

import (
	"rnic/internal/doctor"
)

// Run says what there is to say where rnic run does not exist.
func (d *DoctorCmd) Run() error {
	return d.print(doctor.NewReport([]doctor.Finding{{Check: "system", Level: doctor.Problem, Found: "this is not Linux",
		Means: "rnic run needs Linux. Package verbs, rnic perf and rnic sim work here."}}), "rnic run works here", "rnic run does not work here")
}
