package verbs_test

import (
	"testing"

	"go.uber.org/goleak"
)

// No test and no example leaves a goroutine behind: neither the NIC's nor its own.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
