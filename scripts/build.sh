#!/bin/sh
# build.sh - build ./rnic: one static binary.
set -eu
cd "$(dirname "$0")/.."
. scripts/env.sh
CGO_ENABLED=0 go build -trimpath -o rnic ./cmd/rnic
