#!/bin/sh
# conformance.sh - the tests that hold rnic against what is not ours: so far the kernel's Soft-RoCE.
set -eu
cd "$(dirname "$0")/.."
. scripts/step.sh
step "packages" scripts/packages.sh build guest
. scripts/env.sh
step "tests against the kernel's Soft-RoCE" go run ./tools/testsum -v -count=1 -timeout 5m ./test/guest
