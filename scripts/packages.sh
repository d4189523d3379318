#!/bin/sh
# packages.sh GROUP... - install the Debian packages of the groups that are not installed yet.
#
# Groups: build (compile and test), demo (stock programs to show), guest (virtual machine tests), bench (what make bench compares with),
# conformance (stock programs that make conformance runs on the NIC).
# Silent when nothing is missing. Uses apt-get as root, or sudo. Exit status 1 with a reason otherwise.
set -eu

build="git make gcc libc6-dev linux-libc-dev libibverbs-dev librdmacm-dev ibverbs-providers ibverbs-utils
	perftest python3-pyverbs rdmacm-utils iproute2 tshark procps util-linux"
guest="qemu-system-x86 busybox-static xz-utils kmod iproute2"
demo="ibverbs-providers ibverbs-utils perftest util-linux"
bench="ucx-utils libfabric-bin iperf3 sockperf"
conformance="ibverbs-providers ibverbs-utils perftest util-linux iproute2 coreutils gcc libc6-dev qperf ucx-utils libfabric-bin rdmacm-utils iperf3 fio
	mpich libmpich-dev openmpi-bin libopenmpi-dev qemu-system-x86"

die() {
	echo "packages.sh: $*" >&2
	exit 1
}

wanted=
for group in "$@"; do
	case $group in
	build) wanted="$wanted $build" ;;
	demo) wanted="$wanted $demo" ;;
	guest) wanted="$wanted $guest" ;;
	bench) wanted="$wanted $bench" ;;
	conformance) wanted="$wanted $conformance" ;;
	*) die "unknown group '$group'; the groups are build, demo, guest, bench, conformance" ;;
	esac
done

command -v dpkg-query >/dev/null ||
	die "this is not a Debian system: install the equivalents of these yourself:" $wanted

missing=
for package in $wanted; do
	case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) in
	installed) ;;
	*) missing="$missing $package" ;;
	esac
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null || die "not root and no sudo; as root run: apt-get install$missing"
	sudo -n true 2>/dev/null || [ -t 0 ] ||
		die "sudo asks for a password and there is no terminal; as root run: apt-get install$missing"
	as_root=sudo
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

apt() {
	$as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y \
		-o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 "$@" >"$log" 2>&1
}

# Others' apt-get may hold the lock of the package lists, for which apt has no waiting option.
again() {
	for pause in 5 15 30 0; do
		apt "$@" && return
		[ "$pause" = 0 ] || sleep "$pause"
	done
	cat "$log" >&2
	die "apt-get $* failed, its output is above"
}

echo "installing:$missing" >&2
# The lists are fetched only when they are absent or too old to find a file.
apt install --no-install-recommends $missing && exit 0
again update
again install --no-install-recommends $missing
