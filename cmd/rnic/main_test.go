package main

import (
	"os"
	"testing"
)

// asProgram in the environment makes this test binary the program rnic.
const asProgram = "RNIC_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}
