#!/bin/sh
# The guest's first process. GUEST_ADDRESS, GUEST_ADDRESS6 and GUEST_MTU come from the kernel's command line.
export PATH=/bin HOME=/ LD_LIBRARY_PATH=/lib/x86_64-linux-gnu
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
echo 1 >/proc/sys/kernel/printk
while read -r module; do
	insmod "$module" || echo "insmod $module failed"
done </modules.list
mkdir -p /dev/infiniband
mdev -s
ulimit -l unlimited
# No duplicate address detection: the link is ours alone, and it delays the addresses.
for knob in all default eth0; do
	echo 0 >/proc/sys/net/ipv6/conf/$knob/accept_dad
	echo 0 >/proc/sys/net/ipv6/conf/$knob/accept_ra
done
ip link set lo up
ip link set eth0 mtu "$GUEST_MTU"
ip addr add "$GUEST_ADDRESS" dev eth0
ip addr add "$GUEST_ADDRESS6" dev eth0
ip link set eth0 up
rdma link add rxe0 type rxe netdev eth0 || echo "rdma link add failed"
echo "guest is ready"
# A shell for every connection. Only the host can connect: nothing else is on the link.
nc -ll -p 7000 -e /bin/sh
reboot -f
