#!/bin/sh
# lint.sh - what can be said of the sources without running them.
set -eu
cd "$(dirname "$0")/.."
. scripts/env.sh
. scripts/step.sh

staticcheck=honnef.co/go/tools/cmd/staticcheck@v0.8.2

formatted() {
	bad=$(find . -name '*.go' -not -path '*/.*' -not -path './build/*' -exec gofmt -l {} +)
	[ -z "$bad" ] && return
	echo "gofmt would change:" $bad
	return 1
}

shell_syntax() {
	for script in scripts/*.sh test/guest/*.sh .ci/run; do
		sh -n "$script" || return 1
	done
}

step "gofmt" formatted
step "shell syntax" shell_syntax
step "go vet" go vet ./...
step "staticcheck" go run $staticcheck ./...
step "layering" go run ./tools/testsum -count=1 ./test/layering
