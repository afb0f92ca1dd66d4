# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
#
# Sourced by what runs inside the guest: a sender, a switch and a receiver, frames as on a wire (1500 bytes, no offloads), ECN on at
# both ends, and flows over it (`bench_flows`, in $flows).

in_netns() { nsenter --net="/run/netns/$1" "${@:2}"; }

# path RATE_MBIT DELAY: the delay is on the way back. The switch forwards by address: behind a bridge the sender's own limit on what waits
# in its devices (TSQ) would count the queue, and hold flows back before their window does.
path() {
  local name net
  ip netns add switch
  in_netns switch sysctl -qw net.ipv4.ip_forward=1
  for name in sender receiver; do
    ip netns add $name
    ip link add eth0 netns $name type veth peer name $name netns switch
    in_netns $name ethtool -K eth0 tso off gso off gro off >/dev/null
    in_netns switch ethtool -K $name tso off gso off gro off >/dev/null
    in_netns $name sysctl -qw net.ipv4.tcp_ecn=1 net.ipv4.tcp_no_metrics_save=1 net.ipv4.tcp_wmem='4096 262144 8388608' \
      net.ipv4.tcp_rmem='4096 1048576 16777216'
    [[ $name == sender ]] && net=10.0.1 || net=10.0.2
    in_netns $name ip addr add $net.1/24 dev eth0
    in_netns switch ip addr add $net.254/24 dev $name
    in_netns switch ip link set $name up
    in_netns $name ip link set eth0 up
    in_netns $name ip route add default via $net.254
  done
  in_netns switch tc qdisc add dev receiver root handle 1: tbf rate "$1mbit" burst 3200 limit 100000000
  [[ $2 == 0 ]] || in_netns switch tc qdisc add dev sender root netem delay "$2" limit 100000
}
marks() { # RATE_MBIT ABOVE_BYTES
  in_netns switch tc qdisc add dev receiver parent 1:1 handle 10: red limit 1000000 min "$2" max $(($2 + 1500)) avpkt 1500 \
    burst $(($2 / 1500 + 1)) bandwidth "$1mbit" probability 1 ecn
}
gone() { for name in sender receiver switch; do ip netns del $name; done; }
# run LABEL FLOWS OPTION...
# shellcheck disable=SC2154  # flows: of the script that sources this
run() {
  "$flows" --label "$1" --flows "$2" --sender /run/netns/sender --receiver /run/netns/receiver --address 10.0.2.1 "${@:3}"
}
