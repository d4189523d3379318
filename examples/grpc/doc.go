// Package grpc has gRPC over RDMA as an example, which is a test: rnic itself does not need gRPC.
package grpc
