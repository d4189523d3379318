package sandbox

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_AARCH64

// arm64 never had the calls without a directory descriptor.
var oldCalls []numbered
