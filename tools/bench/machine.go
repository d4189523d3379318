package main

import (
	"os"
	"regexp"
	"runtime"
	"strings"
)

func loadAverage() string {
	data, _ := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(data))
	return strings.Join(fields[:min(3, len(fields))], " ")
}

func kernelRelease() string {
	data, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(data))
}

var modelName = regexp.MustCompile(`(?m)^model name\s*: (.*)$`)

func processor() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	if match := modelName.FindSubmatch(data); match != nil {
		return string(match[1])
	}
	return runtime.GOARCH
}
