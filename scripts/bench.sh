#!/bin/sh
# bench.sh [OPTION]... - build, install what to compare with, and measure. Options: go run ./tools/bench -h
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh build demo bench
. scripts/env.sh
scripts/build.sh
exec go run ./tools/bench "$@"
