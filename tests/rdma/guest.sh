#!/bin/bash
# Inside the guest (vm.sh): makes the two devices and runs the command.
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LC_ALL=C.UTF-8
ulimit -l unlimited
ulimit -n 20000
for s in /dev/fd:/proc/self/fd /dev/stdin:/proc/self/fd/0 /dev/stdout:/proc/self/fd/1 /dev/stderr:/proc/self/fd/2; do
	[ -e "${s%%:*}" ] || ln -s "${s#*:}" "${s%%:*}"
done
# A long READ's answer is one burst; the backlog of 1,000 packets that is usual would drop its tail.
sysctl -qw net.core.netdev_max_backlog=100000
# rxe of this kernel knows the first network namespace alone. So both ends stay in it, and rules of routing keep their
# packets off the loopback path.
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 net.ipv4.conf.all.accept_local=1 \
	net.ipv4.conf.default.accept_local=1 net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 \
	net.ipv6.conf.all.disable_ipv6=1
ip link add veth0 mtu 9000 type veth peer name veth1 mtu 9000
ip addr add 10.77.0.1/32 dev veth0
ip addr add 10.77.0.2/32 dev veth1
ip link set veth0 up
ip link set veth1 up
ip route add 10.77.0.2 dev veth0 src 10.77.0.1 table 100
ip route add 10.77.0.1 dev veth1 src 10.77.0.2 table 101
ip rule add pref 1 iif veth0 to 10.77.0.1 lookup local
ip rule add pref 1 iif veth1 to 10.77.0.2 lookup local
ip rule add pref 2 to 10.77.0.2 lookup 100
ip rule add pref 2 to 10.77.0.1 lookup 101
ip rule add pref 100 lookup local
ip rule del pref 0
ip neigh replace 10.77.0.2 lladdr "$(cat /sys/class/net/veth1/address)" dev veth0 nud permanent
ip neigh replace 10.77.0.1 lladdr "$(cat /sys/class/net/veth0/address)" dev veth1 nud permanent
for i in 0 1; do
	rdma link add rxe$i type rxe netdev veth$i || echo "no soft-RoCE on veth$i"
done
bash /run/job/command
echo $? >/run/job/rc
