#!/bin/sh
# conformance.sh [OPTION]... - what holds rnic against what is not ours: Debian's stock programs, case by case, which
# writes docs/conformance.md, and then the tests against the kernel's Soft-RoCE and with ten thousand queue pairs. With
# options, which go run ./tools/conformance -h explains, the cases alone.
set -eu
cd "$(dirname "$0")/.."
. scripts/step.sh
step "packages" scripts/packages.sh build guest conformance
. scripts/env.sh
step "build" scripts/build.sh
mkdir -p build
go build -o build/conformance ./tools/conformance
[ $# = 0 ] || exec build/conformance "$@"
status=0
(step "rdma-core's Python suite" go test ./test/stock -count=1 -run '^TestPyverbs$' -pyverbs.out "$PWD/build/pyverbs.tsv") || status=1
(step "stock programs, case by case" build/conformance -suite build/pyverbs.tsv) || status=1
step "stock programs, and the kernel's Soft-RoCE" env RNIC_SCALE_QPS=10000 RNIC_PROGRAMS=300 go run ./tools/testsum -v -count=1 -p 1 -timeout 10m $(go list ./test/... | grep -v '/layering$')
exit $status
