# env.sh - sourced by the other scripts: puts the Go release that go.mod names first in PATH, or ends
# with what to do.

# new_enough GO VERSION
new_enough() {
	have=$(GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null) || return 1
	have=${have#go}
	have=${have%% *}
	[ "$(printf '%s\n%s\n' "$2" "$have" | sort -V | head -n 1)" = "$2" ]
}

find_go() {
	needed=$(sed -n 's/^go //p' go.mod)
	for candidate in "$(command -v go || true)" /usr/local/go/bin/go; do
		if [ -x "$candidate" ] && new_enough "$candidate" "$needed"; then
			PATH=${candidate%/*}:$PATH
			export PATH
			return
		fi
	done
	echo "rnic needs Go $needed or newer, in PATH or in /usr/local/go. Get it from https://go.dev/dl/ and unpack it:" >&2
	echo "    tar -C /usr/local -xzf go$needed.linux-amd64.tar.gz" >&2
	exit 1
}

find_go

# A clone may belong to another user than the one who builds it, which git refuses to look into.
case " ${GOFLAGS:-} " in
*" -buildvcs"*) ;;
*) export GOFLAGS="${GOFLAGS:-} -buildvcs=false" ;;
esac
