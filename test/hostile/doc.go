// Package hostile attacks a NIC from the network, by somebody who can send any packet from any address and knows the numbers of queue pairs and
// keys: docs/security.md says what must come of it.
package hostile
