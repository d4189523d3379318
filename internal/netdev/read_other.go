//go:build !linux

package netdev

func readInterfaces() ([]iface, error) { return readPlain() }
