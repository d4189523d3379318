#!/bin/sh
# conformance.sh - the tests that hold rnic against what is not ours: stock programs, and the
# kernel's Soft-RoCE as a peer - and the run with ten thousand queue pairs.
set -eu
cd "$(dirname "$0")/.."
. scripts/step.sh
step "packages" scripts/packages.sh build guest
. scripts/env.sh
step "stock programs, and the kernel's Soft-RoCE" env RNIC_SCALE_QPS=10000 go run ./tools/testsum -v -count=1 -p 1 -timeout 5m $(go list ./test/... | grep -v '/layering$')
