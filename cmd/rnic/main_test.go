package main

import (
	"os"
	"testing"
)

// asProgram in the environment makes this test binary the program rnic.
const asProgram = "RNIC_TEST_AS_PROGRAM"

// alsoProgram, if there is one, is what else this test binary may be: it does not return then.
var alsoProgram func()

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	if alsoProgram != nil {
		alsoProgram()
	}
	os.Exit(m.Run())
}
