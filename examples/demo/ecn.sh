#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# The demonstration of ECN, run by `./dev demo ecn [--quick]`: congestion controls (CCAs) that need ECN, put on connections by hand,
# and what goes wrong then; after that the same steps under Sluice, where it does not.
#
# A CCA that needs ECN makes the kernel send ECT, whether the peer echoes marks or not. If it does not, the sender is blind: routers
# mark its packets instead of dropping them, and it never learns.
#
# What is said about the system is read from the kernel or answered by the product; every step checks what it claims, and the first
# claim that fails ends the demonstration with status 1. --quick looks at fewer packets; the steps are the same.
set -Eeuo pipefail
# shellcheck source=examples/demo/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

hosts=(eu1 eu2 us1 us2)
managed=(eu1 us1) # eu2 and us2 stay ordinary hosts
readonly wan_mbit=16 wan_delay_ms=5 wan_buffer_kb=150 wan_mark_kb=15
export NSTAT_HISTORY=nstat # in each host's folder

# ---- traffic -------------------------------------------------------------------------------------------------------------------

# serve HOST PORT [CCA]
serve() {
  spawn "$1" "$work/$1/net" "$work/$1/serve.log" "$here/bulk.py" serve "${@:2}"
  within "$deadline_s" listens "$1" "$2" || fail "nothing listens on $1" "$(<"$work/$1/serve.log")"
}
# bulk send|get FROM TO PORT [CCA...]: a connection full of data; its process is $spawned. In the host's cgroup, or in $group.
bulk() {
  spawn "${group:-$2}" "$work/$2/net" "$work/$2/bulk.log" "$here/bulk.py" "$1" "${v4[$3]}" "${@:4}"
  within "$deadline_s" connected "$2" "$4" || fail "no connection from $2 to $3" "$(<"$work/$2/bulk.log")"
}
connected() { [[ $(inside "$1" ss -Htn state established "dport = :$2") ]]; }
# next_cca PID: the connection goes on with the next CCA of its arguments.
next_cca() { kill -USR1 "$1"; }
stop() {
  kill "$1"
  within "$deadline_s" gone "$1" || fail "a transfer does not end"
}

# ---- what the kernel says ------------------------------------------------------------------------------------------------------

# count HOST COUNTER: how much it grew since start_counting.
count() { at "$1" nstat -sz "$2" | awk -v name="$2" '$1 == name { print $2 }'; }
start_counting() {
  local host
  for host in "${hosts[@]}"; do at "$host" nstat -n; done
}
grown() { (($(count "$1" "$2") >= $3)); }
await() {
  within "$deadline_s" grown "$@" || fail "$2 of $1 comes to $3" "$(at "$1" nstat -sz "$2" 'TcpInSegs' 'TcpOutSegs' 'IpExtIn*Pkts')"
}
# ect HOST: segments that came to it with ECT, marked or not.
ect() { echo $(($(count "$1" IpExtInECT0Pkts) + $(count "$1" IpExtInCEPkts))); }
no_ect() {
  start_counting
  await "$1" TcpInSegs "$segments"
  (($(ect "$1") == 0)) || { at "$1" nstat -sz 'IpExtIn*Pkts' && return 1; }
}
# only_syn FROM TO: of a connection begun since start_counting, the SYN alone went with ECT.
only_syn() {
  await "$2" TcpInSegs "$segments"
  (($(ect "$2") <= 1 + $(count "$1" TcpExtTCPSynRetrans))) || { at "$2" nstat -sz 'IpExtIn*Pkts' && return 1; }
}
gets_ect() {
  start_counting
  await "$1" TcpInSegs "$segments"
  (($(ect "$1") > 0)) || { at "$1" nstat -sz 'IpExtIn*Pkts' && return 1; }
}
gets_no_ect() { eventually no_ect "$1"; } # what was under way when the CCA changed arrives first
# eventually COMMAND...: what it says of the last time is all that is told.
eventually() { within "$deadline_s" "$@" &>/dev/null || "$@"; }
# counters HOST COUNTER...
counters() { show "$1" 5 nstat -sz "${@:2}"; }

# ss_ecn HOST PORT: what ss tells of the connection to that port.
ss_ecn() { ss_brief "$1" 1 -tineO '^(ecn|ecnseen)$|^(cwnd|ssthresh|retrans|delivered_ce):' "dport = :$2"; }
# In $out, of ss.
has_word() { [[ " $out " == *" $1 "* ]] || { printf '%s\n' "$out" && return 1; }; }
has_no_word() { [[ " $out " != *" $1 "* ]] || { printf '%s\n' "$out" && return 1; }; }
none_of() { (($(count "$1" "$2") == 0)) || { at "$1" nstat -sz "$2" && return 1; }; }
some_of() { (($(count "$1" "$2") > 0)) || { at "$1" nstat -sz "$2" && return 1; }; }

# blind SENDER RECEIVER: marks arrive, and the sender does not hear of them.
blind() {
  await "$2" IpExtInCEPkts "$marks"
  counters "$2" IpExtInECT0Pkts IpExtInCEPkts
  local marked
  marked=$(awk '$1 == "IpExtInCEPkts" { print $2 }' <<<"$out")
  counters "$1" TcpExtTCPDeliveredCE
  expect "blind: $marked packets were marked, and $1 learned of none" none_of "$1" TcpExtTCPDeliveredCE
}
# echoed SENDER RECEIVER: marks arrive, and the sender hears of them.
echoed() {
  await "$1" TcpExtTCPDeliveredCE "$marks"
  counters "$2" IpExtInECT0Pkts IpExtInCEPkts
  counters "$1" TcpExtTCPDeliveredCE
  expect "$1 learns of the marks" some_of "$1" TcpExtTCPDeliveredCE
}

set_ecn() { show "$1" 1 sysctl -w "net.ipv4.tcp_ecn=$2"; }

# part TITLE
part() { printf '\n%s=== %s ===%s\n' "$bold" "$1" "$plain"; }

# ---- the story -----------------------------------------------------------------------------------------------------------------

# only_marks: a new connection of $reno that met marks and retransmitted nothing. On a machine that is busy for long timers go off, hence
# repeated.
only_marks() {
  start_counting
  bulk send eu1 us1 5001 "$reno"
  local pid=$spawned
  await eu1 TcpExtTCPDeliveredCE 1
  out=$(inside eu1 ss -HtinO "dport = :5001")
  [[ $out == *" ssthresh:"* && $(count eu1 TcpRetransSegs) == 0 ]] || { stop "$pid" && return 1; }
}

begin_demo "$@"
marks=$((quick ? 20 : 100)) segments=$((quick ? 100 : 500))
object=$work/eu1/traps.bpf.o
id=$(printf '%-7d' $$)
reno=ecnreno.$$ fixed=ecnfix.$$
build_network "$wan_mbit" "$wan_delay_ms" "$wan_buffer_kb" "$wan_mark_kb"
LC_ALL=C sed "s/\.0000000/.${id// /\\x00}/g" "$SLUICE_BUILD/examples/demo/traps/traps.bpf.o" >"$object"

part "By hand"
chapter "ECN as it is meant" \
  "A line of $wan_mbit Mbit/s marks packets that find more than $wan_mark_kb kB waiting. $reno is the kernel's Reno, made a CCA that
   needs ECN; both ends run it."
show eu1 4 bpftool struct_ops register traps.bpf.o "$pins"
expect "it is a CCA of this kernel" contains "$(</proc/sys/net/ipv4/tcp_available_congestion_control)" "$reno"
serve us1 5001 "$reno"
within "$deadline_s" only_marks || fail "a connection of $reno meets marks and retransmits nothing" "$(at eu1 nstat -sz 'Tcp*Segs' 'TcpExtTCPDeliveredCE')"
flow=$spawned
ss_ecn eu1 5001
expect "negotiated" has_word ecn
expect "a mark is a loss to the kernel: it took part of the window (ssthresh), and nothing was retransmitted" contains "$out" " ssthresh:"
echoed eu1 us1
stop "$flow"
note "Unless the CCA has cong_control, as $fixed: then the kernel does nothing of its own."
start_counting
bulk send eu1 us1 5001 "$fixed"
await eu1 TcpExtTCPDeliveredCE "$marks"
ss_ecn eu1 5001
expect "marks come back, and the window stays" contains "$out" " cwnd:40 "
expect "no ssthresh" lacks "$out" " ssthresh:"
stop "$spawned"

chapter "The server is an ordinary one" \
  "us2 has tcp_ecn=2, as every Linux: it agrees to ECN if asked. But the SYN of $reno comes as ECT, which it takes for
   mangled: it does not agree, and $reno sends ECT all the same."
show us2 1 sysctl net.ipv4.tcp_ecn
serve us2 5002 reno
start_counting
bulk send eu1 us2 5002 "$reno"
ss_ecn eu1 5002
expect "not negotiated" has_no_word ecn
blind eu1 us2
stop "$spawned"

chapter "Moved later" "A connection of reno without ECN, and then somebody puts it on $reno (TCP_CONGESTION)."
bulk send eu1 us2 5002 reno "$reno" reno
flow=$spawned
expect "reno: nothing is sent with ECT" gets_no_ect us2
next_cca "$flow"
start_counting
await us2 TcpInSegs "$segments"
ss_ecn eu1 5002
expect "runs $reno" has_word "$reno"
expect "not negotiated" has_no_word ecn
blind eu1 us2
note "Reno makes no use of marks: it is the flag, not the algorithm, that sends ECT. Only another CCA ends it:"
next_cca "$flow"
expect "reno again: nothing is sent with ECT" gets_no_ect us2
stop "$flow"

chapter "Only the listener" "A server on $reno, clients that are ordinary."
serve us1 5003 "$reno"
start_counting
bulk get eu2 us1 5003
ss_ecn eu2 5003
expect "the client does not ask, and has no ECN" has_no_word ecn
blind us1 eu2
stop "$spawned"
note "And who does ask gets it, be it from the other side of the world or from next door, whatever tcp_ecn says here:"
set_ecn us1 0
set_ecn us2 1
serve us1 5004 reno
bulk send us2 us1 5004
ss_ecn us2 5004
expect "a listener on reno does not agree" has_no_word ecn
stop "$spawned"
bulk send us2 us1 5003
ss_ecn us2 5003
expect "a listener on $reno does" has_word ecn
stop "$spawned"
set_ecn us1 2
set_ecn us2 2

chapter "It stays" \
  "Both ends on $reno, then back to the kernel's reno: ECN is the connection's, for life. What comes after meets marks."
bulk send eu1 us1 5001 "$reno" reno
flow=$spawned
next_cca "$flow"
start_counting
await us1 TcpInSegs "$segments"
start_counting
echoed eu1 us1
ss_ecn eu1 5001
expect "runs reno" has_word reno
expect "still negotiated" has_word ecn
stop "$flow"

chapter "The moment" "The same CCA, put on by a program of the cgroup (sockops): when the handshake is over is too late."
prompt eu1 bpftool prog loadall traps.bpf.o "$pins/programs"
at eu1 bpftool prog loadall traps.bpf.o "$pins/programs"
port=5010
declare -A wanted=([at_connect]="negotiated" [at_established]="blind" [at_request]="negotiated")
declare -A moment=(
  [at_connect]="before the SYN, and at the listener"
  [at_established]="when the handshake is over"
  [at_request]="when the handshake is over, and the kernel's question NEEDS_ECN is answered with 1")
for program in at_connect at_established at_request; do
  note "${moment[$program]^}:"
  prompt eu1 bpftool cgroup attach "$cgroup" cgroup_sock_ops pinned "$pins/programs/$program"
  bpftool cgroup attach "$cgroup" cgroup_sock_ops pinned "$pins/programs/$program"
  serve us1 "$port"
  start_counting
  bulk send eu1 us1 "$port"
  bpftool cgroup detach "$cgroup" cgroup_sock_ops pinned "$pins/programs/$program"
  ss_ecn eu1 "$port"
  expect "runs $reno" has_word "$reno"
  if [[ ${wanted[$program]} == blind ]]; then
    expect "not negotiated" has_no_word ecn
    blind eu1 us1
  else
    expect "negotiated" has_word ecn
  fi
  stop "$spawned"
  port=$((port + 1))
done
rm -r "$pins/programs"

part "Under Sluice"
# ecn_of HOST PORT: what `sluice sockets --ecn` calls the connection to that port.
ecn_of() { at "$1" sluice sockets --ecn --output json | jq -r --arg port ":$2" '.sockets[] | select(.remote | endswith($port)) | .ecn'; }
calls() { [[ $(ecn_of "$1" "$2" 2>/dev/null) == "$3" ]] || { at "$1" sluice sockets --ecn && return 1; }; }
becomes() { expect "sluice calls the one to port $2 $3" eventually calls "$1" "$2" "$3"; }

chapter "The path" "Agents on eu1 and us1; us2 stays ordinary. Is ECN of any use between here and there?"
start_agents
for host in us1 us2; do
  show eu1 6 sluice ecn probe "${v4[$host]}" --port "$([[ $host == us1 ]] && echo 5004 || echo 5002)"
  expect "the path to $host keeps ECT and marks, and $host echoes them if asked" exited "$status" 0
done

chapter "One policy" "Between regions dctcp, which needs ECN; cubic is the transitional CCA: for listeners and where there is no ECN."
note "Two connections without ECN are open when the policy comes, one of them blind:"
bulk send eu1 us1 5004 reno
plain_flow=$spawned
bulk send eu1 us2 5002 "$reno"
blind_flow=$spawned
ss_ecn eu1 5004
ss_ecn eu1 5002
expect "not negotiated" has_no_word ecn
expect "$reno sends ECT" gets_ect us2
for host in "${managed[@]}"; do
  {
    in_place "$host"
    cat <<'YAML'
bundles:
  - {name: dctcp, version: 1.0.0}
  - {name: cubic, version: 1.0.0}
transitional: cubic@1.0.0
rules:
  - {name: far, match: {locality: cross_region}, use: "dctcp@1.0.0"}
  - {name: rest, use: "kernel:reno"}
YAML
  } >"$work/$host/policy.yaml"
done
prompt eu1 cat policy.yaml
shown 40 "$(<"$work/eu1/policy.yaml")"
everywhere 8 sluice apply policy.yaml
show eu1 20 sluice sockets --ecn
becomes eu1 5004 refused
becomes eu1 5002 refused
expect "nothing is sent to us1 with ECT" gets_no_ect us1
expect "nothing is sent to us2 with ECT: no blind sender any more" gets_no_ect us2
show eu1 20 sluice events
expect "the migration was rewritten, and told" contains "$out" "2 connections without ECN"
show eu1 8 sluice explain "${v4[us1]}"
expect "explain counts them" contains "$out" "2 of 2 open connections"
stop "$plain_flow"
stop "$blind_flow"

chapter "Both ends want it" \
  "As in step 1: the client's end is put on dctcp before the SYN, and the kernel's question NEEDS_ECN is answered by the policy."
start_counting
bulk send eu1 us1 5004
long_flow=$spawned
echoed eu1 us1
ss_ecn eu1 5004
expect "negotiated" has_word ecn
show eu1 20 sluice sockets --ecn
becomes eu1 5004 echoing

chapter "The server is an ordinary one" "As in step 2: it does not agree, and the connection is cubic's before the first data is sent."
start_counting
bulk send eu1 us2 5002 reno "$reno"
flow=$spawned
expect "only the SYN is sent with ECT" only_syn eu1 us2
counters us2 IpExtInECT0Pkts IpExtInCEPkts
ss_ecn eu1 5002
expect "not negotiated" has_no_word ecn
becomes eu1 5002 refused
show eu1 8 sluice explain "${v4[us2]}"
expect "explain counts it" contains "$out" "1 of 2 open connections"
note "And moved later, as in step 3: the application puts its connection on $reno. The call succeeds and changes nothing."
next_cca "$flow"
expect "nothing is sent with ECT" gets_no_ect us2
becomes eu1 5002 refused
stop "$flow"
note "A process that is not of the agent's cgroup is free to do it. sockets tells, and migrate mends it:"
group=network bulk send eu1 us2 5002 reno "$reno"
flow=$spawned
next_cca "$flow"
expect "something is sent with ECT" eventually gets_ect us2
show eu1 4 sluice sockets --ecn
becomes eu1 5002 blind
show eu1 4 sluice migrate
becomes eu1 5002 refused
expect "nothing is sent with ECT" gets_no_ect us2
stop "$flow"

chapter "The listener" "As in step 4. It runs cubic, and the policy answers for the place of each who asks."
show us1 12 sluice sockets --ecn
bulk get eu2 us1 5004
ss_ecn eu2 5004
expect "eu2 does not ask" has_no_word ecn
expect "nothing is sent to it with ECT" gets_no_ect eu2
stop "$spawned"
set_ecn us1 0
set_ecn eu2 1
set_ecn us2 1
bulk send eu2 us1 5004
ss_ecn eu2 5004
expect "eu2, for whose place the rule says dctcp, asks and gets it" has_word ecn
stop "$spawned"
bulk send us2 us1 5004
ss_ecn us2 5004
expect "us2, for whose place it says kernel:reno, does not" has_no_word ecn
stop "$spawned"

chapter "It stays" "As in step 5: the connection of step 9 leaves dctcp. The transitional CCA knows about marks."
everywhere 6 sluice rollback dctcp
start_counting
echoed eu1 us1
ss_ecn eu1 5004
expect "still negotiated" has_word ecn
becomes eu1 5004 echoing

chapter "Taken back" "down gives every connection back to the kernel's default and removes all that is ours; the traffic goes on."
rm -r "$pins"
take_back
expect "the connection of step 9 goes on" kill -0 "$long_flow"
ss_ecn eu1 5004
expect "and has ECN, for life" has_word ecn
story_ends
