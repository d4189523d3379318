package sim

import (
	"fmt"
	"slices"

	"rnic/internal/ibcm"
	"rnic/internal/nic"
)

// plantedNames are the faults that can be planted into the NIC, by the names that the command line
// uses.
var plantedNames = map[string]nic.Planted{
	"psn-wrap":               nic.PlantedPSNWrap,
	"atomic-twice":           nic.PlantedAtomicTwice,
	"early-ack":              nic.PlantedEarlyACK,
	"completion-before-data": nic.PlantedCompletionBeforeData,
	"lost-flush":             nic.PlantedLostFlush,
	"bounds-wrap":            nic.PlantedBoundsWrap,
	"stale-key":              nic.PlantedStaleKey,
	"skipped-rnr-timer":      nic.PlantedSkippedRNRTimer,
	"wrong-fence":            nic.PlantedWrongFence,
	"duplicate-completion":   nic.PlantedDuplicateCompletion,
	"reordered-completion":   nic.PlantedReorderedCompletion,
	"lost-solicited":         nic.PlantedLostSolicited,
	"stale-window":           nic.PlantedStaleWindow,
	"foreign-window":         nic.PlantedForeignWindow,
	"invalidate-ignored":     nic.PlantedInvalidateIgnored,
	"window-bounds":          nic.PlantedWindowBounds,
	"shared-receive-twice":   nic.PlantedSharedTwice,
	"lost-last-wqe":          nic.PlantedLostLastWQE,
	"limit-again":            nic.PlantedLimitAgain,
	"resize-loses":           nic.PlantedResizeLoses,
	"rereg-keeps-key":        nic.PlantedReregKey,
	"late-notice":            nic.PlantedLateNotice,
	"unseen-gap":             nic.PlantedUnseenGap,
	"dropped-message-used":   nic.PlantedDroppedUsed,
	"xrc-queue-kept":         nic.PlantedXRCQueueKept,
	"deaf-in-sqe":            nic.PlantedSQEDeaf,
	"lost-copy":              nic.PlantedLostCopy,
	"stale-member":           nic.PlantedStaleMember,
	"echoed-copy":            nic.PlantedEchoedCopy,
	"cnp-flood":              nic.PlantedCNPFlood,
	"unpaced":                nic.PlantedUnpaced,
	"stale-steering":         nic.PlantedStaleSteer,
	"forgetful-move":         nic.PlantedMoveForgets,
	"near-overflow":          nic.PlantedOverrunNear,
	"kept-ahead":             nic.PlantedKeptAhead,
	"sack-acks":              nic.PlantedSackAcks,
	"early-answer":           nic.PlantedEarlyAnswer,
	"kept-reused":            nic.PlantedKeptReused,
	"lonely-forever":         nic.PlantedLonely,
	"never-armed":            nic.PlantedNeverArmed,
	"migrate-deaf":           nic.PlantedMigrateDeaf,
	"migrate-spent":          nic.PlantedMigrateSpent,
	"cm-rtu-once":            cmFirst + nic.Planted(ibcm.PlantedRTUOnce),
	"cm-stale-id":            cmFirst + nic.Planted(ibcm.PlantedStaleID),
	"cm-no-timewait":         cmFirst + nic.Planted(ibcm.PlantedNoTimewait),
	"cm-request-twice":       cmFirst + nic.Planted(ibcm.PlantedRequestTwice),
}

// PlantedNames are the names that PlantedByName knows, sorted.
func PlantedNames() []string {
	var names []string
	for name := range plantedNames {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// PlantedByName finds a fault to plant; "" is none.
func PlantedByName(name string) (nic.Planted, error) {
	if name == "" {
		return nic.PlantedNone, nil
	}
	p, ok := plantedNames[name]
	if !ok {
		return 0, fmt.Errorf("there is no fault %q to plant: choose one of %v", name, PlantedNames())
	}
	return p, nil
}

// plantedName is the inverse of PlantedByName.
func plantedName(p nic.Planted) string {
	for name, q := range plantedNames {
		if p == q {
			return name
		}
	}
	return ""
}
