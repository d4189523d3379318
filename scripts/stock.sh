#!/bin/sh
# stock.sh PROGRAM [ARGUMENT]... - run a program of Debian's perftest on the NIC: server and client in one
# "rnic run", as an ordinary user without any privilege and with the usual limit of 64 KiB of locked
# memory. Prints what the client prints. RNIC is the binary to use, ./rnic by default.
set -eu

rnic=${RNIC:-$(dirname "$0")/../rnic}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# The checkout may lie where an ordinary user cannot look.
cp "$rnic" "$dir/rnic"
cat >"$dir/pair" <<'PAIR'
#!/bin/sh
# pair PORT LOG PROGRAM ARGUMENT... - a server in the background, and its client once it listens.
port=$1 log=$2
shift 2
"$@" -p "$port" >"$log" 2>&1 &
server=$!
listening() {
	grep -q "$(printf ':%04X [0-9A-F]*:0000 0A' "$port")" /proc/net/tcp /proc/net/tcp6 2>/dev/null
}
tries=0
until listening; do
	tries=$((tries + 1))
	if ! kill -0 "$server" 2>/dev/null || [ "$tries" -gt 200 ]; then
		echo "the server does not listen:" >&2
		cat "$log" >&2
		kill "$server" 2>/dev/null
		exit 1
	fi
	sleep 0.1
done
"$@" -p "$port" 127.0.0.1
status=$?
if [ "$status" != 0 ]; then
	kill "$server" 2>/dev/null
	echo "the client ended with status $status; the server said:" >&2
	cat "$log" >&2
fi
wait "$server" || status=$?
exit "$status"
PAIR
chmod 755 "$dir" "$dir/rnic" "$dir/pair"
mkdir -m 777 "$dir/log"

ordinary=
[ "$(id -u)" != 0 ] || ordinary="setpriv --reuid 65534 --regid 65534 --clear-groups"
# A port of our own: something may use perftest's.
port=$((20000 + $$ % 10000))
# Perftest measures the processor's clock first, and gives up on a busy machine: that is not about the NIC.
calibration='Correlation coefficient r^2'
try=1
while :; do
	status=0
	$ordinary sh -c 'cd / && ulimit -l 64 && exec "$@"' sh "$dir/rnic" run -- "$dir/pair" "$port" "$dir/log/server" "$@" \
		>"$dir/out" 2>&1 || status=$?
	if [ "$try" -lt 5 ] && grep -q "$calibration" "$dir/out"; then
		try=$((try + 1)) port=$((port + 1))
		sleep 1
		continue
	fi
	break
done
cat "$dir/out"
exit "$status"
