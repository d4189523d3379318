//go:build race

package dma

const raceEnabled = true
