#!/bin/sh
# fuzz.sh [OPTION]... - every fuzzer, ten minutes each, two at a time; the table goes to docs/security.md. Options: go run ./tools/fuzz -h
set -eu
cd "$(dirname "$0")/.."
. scripts/env.sh
exec nice -n 15 go run ./tools/fuzz -o docs/security.md "$@"
