#!/bin/sh
# interop.sh [OPTION]... - programs on the NIC against the same programs on the kernel's Soft-RoCE in virtual machines,
# with the kernel of this release of Debian and the newest that Debian serves; writes the table of docs/conformance.md.
# Options: go run ./tools/interop -h
set -eu
cd "$(dirname "$0")/.."
scripts/packages.sh build guest || echo "going on with what is installed" >&2
. scripts/env.sh
scripts/build.sh
exec go run ./tools/interop "$@"
