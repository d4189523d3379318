#!/bin/sh
# test.sh - everything that a change must pass.
set -eu
cd "$(dirname "$0")/.."
. scripts/step.sh

begin=$(date +%s)
# Without the means to install, go on with what is there; the tests say what they miss.
step "packages" sh -c 'scripts/packages.sh build guest || [ "$(id -u)" != 0 ]'
. scripts/env.sh
step "build" scripts/build.sh
scripts/lint.sh
# Those with stock programs and an emulated machine come by themselves: they need the processor.
step "tests with the race detector" go run ./tools/testsum -race $(go list ./... | grep -v '/test/')
# What the race detector would distort, such as counts of allocations, is built without it only.
untagged=$(grep -rlE --include='*_test.go' '^//go:build .*race' . | xargs -r -n 1 dirname | sort -u)
[ -z "$untagged" ] || step "tests without it" go run ./tools/testsum $untagged
step "the fuzzers of whole cores, ten seconds each" go run ./tools/fuzz -core -fresh -time 10s
step "stock programs, and the kernel's Soft-RoCE" go run ./tools/testsum -count=1 -p 1 -timeout 10m $(go list ./test/... | grep -v '/layering$')
mkdir -p build
go build -o build/conformance ./tools/conformance
step "stock programs, some of the cases of make conformance" build/conformance --short -o build/conformance-short.json
echo "== all ok, $(($(date +%s) - begin)) s"
