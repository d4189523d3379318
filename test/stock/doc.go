// Package stock runs stock RDMA programs, unmodified, on the NIC under rnic run: what a user of
// the programs sees.
package stock
