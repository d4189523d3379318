.PHONY: all demo test bench conformance interop fuzz lint guest-image clean

# The binary is always built again: Go knows better than make what has changed.
all:
	@scripts/build.sh

# Stock RDMA programs on the NIC.
demo:
	@scripts/demo.sh

# Everything that a change must pass.
test:
	@scripts/test.sh

# Figures, with what else there is. Options: make bench BENCH="-runs 9 -o bench.md"
bench:
	@scripts/bench.sh $(BENCH)

# The NIC against implementations that are not ours. Options: make conformance CONFORMANCE="--group ucx"
conformance:
	@scripts/conformance.sh $(CONFORMANCE)

# Every fuzzer, ten minutes each. Options: make fuzz FUZZ="-core -time 1m"
fuzz:
	@scripts/fuzz.sh $(FUZZ)

# Stock and Go programs against the kernel's Soft-RoCE, kernels old and new. Options: make interop INTEROP="--full"
interop:
	@scripts/interop.sh $(INTEROP)

lint:
	@scripts/lint.sh

# The virtual machine of the tests, ahead of time: fetches a kernel into the cache.
guest-image:
	@scripts/packages.sh build guest
	@. scripts/env.sh && go run ./test/guest/boot

clean:
	rm -rf rnic build
