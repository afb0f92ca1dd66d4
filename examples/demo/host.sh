#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# The demonstration, run by `./dev demo [--quick]`: four hosts in two regions, one agent on each, real traffic; a policy, an upgrade,
# a killed agent, a broken CCA, a rollback, and nothing left at the end.
#
# What is said about the system is read from the kernel or answered by the product; every step checks what it claims, and the first
# claim that fails ends the demonstration with status 1. --quick measures for shorter times; the steps are the same.
set -Eeuo pipefail
# shellcheck source=examples/demo/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

hosts=(eu1 eu2 us1 us2)
managed=("${hosts[@]}")
readonly wan_mbit=16 wan_delay_ms=20 wan_buffer_kb=80
readonly flow_port=5201 near_port=5202 http_port=8080

# ---- traffic -------------------------------------------------------------------------------------------------------------------

# flow FROM TO ADDRESS PORT ARGUMENT...: a long iperf3 transfer.
flow() {
  spawn "$2" "$work/$2/net" "$work/$2/iperf3.log" iperf3 --server --port "$4"
  within "$deadline_s" listens "$2" "$4" || fail "iperf3 does not listen on $2" "$(<"$work/$2/iperf3.log")"
  spawn "$1" "$work/$1/net" "$work/$1/iperf3.log" iperf3 --client "$3" --port "$4" --time 0 "${@:5}"
}

# churn FROM URL...: short connections, for ever.
churn() {
  local from=$1
  shift
  spawn "$from" "$work/$from/net" "$work/$from/churn.log" "$here/churn.py" get "$work/$from/churn.json" 3 "$@"
}

start_traffic() {
  local host
  flow eu1 us1 "${v4[us1]}" "$flow_port" --parallel 4
  flow us2 eu2 "${v6[eu2]}" "$flow_port" --parallel 4
  flow eu1 eu2 "${v4[eu2]}" "$near_port" --bitrate 20M
  flow us2 us1 "${v6[us1]}" "$near_port" --bitrate 20M
  for host in "${hosts[@]}"; do spawn "$host" "$work/$host/net" "$work/$host/http.log" "$here/churn.py" serve "$http_port"; done
  for host in "${hosts[@]}"; do
    within "$deadline_s" listens "$host" "$http_port" || fail "no HTTP server on $host" "$(<"$work/$host/http.log")"
  done
  churn eu1 "http://${v4[us1]}:$http_port" "http://${v4[eu2]}:$http_port"
  churn us2 "http://[${v6[eu1]}]:$http_port" "http://[${v6[us1]}]:$http_port"
}

# ---- witnesses -----------------------------------------------------------------------------------------------------------------

long_connections() {
  sockets |
    jq -r "select(.state == \"ESTABLISHED\") | select([.local_port, .remote_port] | any(. == $flow_port or . == $near_port)) | .cookie" | sort
}

# Both ends of twice four connections and a control connection, and of twice one and a control connection.
all_long_up() { (($(long_connections | wc -l) == 28)); }

# expect_ends VERSION...: what ends.py is to judge by: the struct_ops ids of these versions of cubic on each host.
expect_ends() {
  local host versions
  versions=$(printf '%s\n' "$@" | jq -R . | jq -sc .)
  for host in "${hosts[@]}"; do
    at "$host" sluice cca list --output json |
      jq -c --arg host "$host" --arg v4 "${v4[$host]}" --arg v6 "${v6[$host]}" --argjson versions "$versions" \
        '{key: $host, value: {region: $host[:2], addresses: [$v4, $v6],
          ids: [.ccas[] | select(.name == "cubic" and .map_id > 0 and (.version | IN($versions[]))) | .map_id]}}'
  done | jq -s --arg near "$near" '{hosts: from_entries, near: $near}' >"$work/expected.json"
}

# both_ends LINES VERSION...: the recorder's table; fails unless everything between the regions runs one of these versions.
both_ends() {
  local lines=$1
  shift
  expect_ends "$@"
  prompt witness "recorder $(printf '%s/net ' "${hosts[@]}")| ends.py expected.json"
  out=$(sockets | "$here/ends.py" "$work/expected.json" 2>&1) ||
    fail "a socket does not run what the policy says" "$out"
  shown "$lines" "$out"
}

# tally: "opened - N", "failed - N" and "client|server CCA N" of all short connections so far.
tally() {
  jq -rs '"opened - \(map(.opened) | add)", "failed - \(map(.failed) | add)",
    ([.[].ends[] | to_entries[] | .key as $side | .value | to_entries[] | {side: $side, cca: .key, n: .value}] |
      group_by([.side, .cca])[] | "\(.[0].side) \(.[0].cca) \(map(.n) | add)")' "$work"/{eu1,us2}/churn.json
}
# older_done WHEN: every short connection that was begun before is counted.
older_done() { jq -es --argjson when "$1" 'map(.oldest > $when) | all' "$work"/{eu1,us2}/churn.json >/dev/null; }
opened() { tally | awk '$1 == "opened" { print $3 }'; }
churning() { [[ -s $work/eu1/churn.json && -s $work/us2/churn.json ]]; }
opened_since() {
  local now
  now=$(opened) && ((${now:-0} >= $1 + $2))
}
# tally_since FILE: what came since.
tally_since() { tally | awk 'NR == FNR { old[$1 $2] = $3; next } $3 - old[$1 $2] { print $1, $2, $3 - old[$1 $2] }' "$1" -; }

# learn_names: adds what our CCAs on all hosts are called in the kernel now to the file `names` (KERNEL-NAME BUNDLE).
learn_names() { our_ccas | cut -d ' ' -f 2- >>"$work/names"; }

# only_chosen SEEN: no connection failed, or ran what no rule names.
only_chosen() {
  awk -v near="$near" '$1 == "failed" || ($1 != "opened" && $2 != near && $2 !~ /^cubic@/) { print; bad = 1 } END { exit bad }' <<<"$1"
}

# churned BEFORE: waits for enough short connections since that tally, and proves that none failed and none ran the default. $seen is
# the tally since, with our CCAs by name and version.
churned() {
  local before=$1
  within "$deadline_s" opened_since "$(awk '$1 == "opened" { print $3 }' "$before")" "$churn_connections" ||
    fail "fewer than $churn_connections short connections in $deadline_s s" "$(tally && cat "$work"/*/churn.json)"
  seen=$(tally_since "$before" | awk 'NR == FNR { bundle[$1] = $2; next } { print $1, $2 in bundle ? bundle[$2] : $2, $3 }' "$work/names" -)
  note "$(awk '$1 == "opened" { print $3 }' <<<"$seen") short connections meanwhile, by the name that TCP_CONGESTION gave at each end:"
  shown 20 "$(awk '$1 == "client" || $1 == "server" { n[$2, $1] += $3; name[$2] }
    END { for (c in name) printf "%-14sclient end %6d    server end %6d\n", c, n[c, "client"], n[c, "server"] }' <<<"$seen" | sort)"
  expect "none failed, none ran the default ($default)" only_chosen "$seen"
}

rx_bytes() { inside us ip -json -stats link show dev wan | jq '.[0].stats64.rx.bytes'; }
# measure: $kbit_s that crossed the line from eu to us, over window_s.
measure() {
  local bytes begun
  bytes=$(rx_bytes) begun=${EPOCHREALTIME/./}
  sleep "$window_s" # the length of the measurement
  kbit_s=$((($(rx_bytes) - bytes) * 8000 / (${EPOCHREALTIME/./} - begun)))
}
mbit() { printf '%d.%d Mbit/s' $(($1 / 1000)) $(($1 % 1000 / 100)); }

# ---- policy --------------------------------------------------------------------------------------------------------------------

# policy VERSION...: writes policy.yaml of every host. The last version is the one in use, the first the transitional one.
policy() {
  local host version
  for host in "${hosts[@]}"; do
    {
      in_place "$host"
      echo bundles:
      for version; do echo "  - {name: cubic, version: $version}"; done
      cat <<YAML
transitional: cubic@$1
rules:
  - {name: near, match: {locality: intra_region}, use: "kernel:$near"}
  - {name: far, match: {locality: cross_region}, use: "cubic@${*: -1}"}
  - {name: rest, use: "kernel:$near"}
YAML
    } >"$work/$host/policy.yaml"
  done
}

# ---- the story -----------------------------------------------------------------------------------------------------------------

# ss_flow: what the kernel itself tells about the long transfer from eu1 to us1.
ss_flow() { ss_brief eu1 5 -tinO '^(rtt|cwnd|ssthresh|bytes_acked):' "dport = :$flow_port"; }
both_versions() { contains "$1" cubic@1.0.0 && contains "$1" cubic@2.0.0; }
slower_than() { measure && ((kbit_s < $1)); }
faster_than() { measure && ((kbit_s > $1)); }
# Exit status 3 says that the host is degraded.
degraded() {
  local code=0
  at "$1" sluice status >"$work/$1/out" 2>&1 || code=$?
  ((code == 3))
}

begin_demo "$@"
churn_connections=$((quick ? 100 : 600)) window_s=$((quick ? 1 : 2))

chapter "Two regions, two hosts each, and traffic on the kernel's default" \
  "Before Sluice, every connection runs whatever net.ipv4.tcp_congestion_control says, near and far alike."
build_network "$wan_mbit" "$wan_delay_ms" "$wan_buffer_kb"
default=$(inside eu1 sysctl -n net.ipv4.tcp_congestion_control)
near=$(inside eu1 sysctl -n net.ipv4.tcp_available_congestion_control |
  awk -v default="$default" '{ for (i = 1; i <= NF; i++) if ($i ~ /^(bbr|reno|cubic)$/ && $i != default) { print $i; exit } }')
start_traffic
within "$deadline_s" churning || fail "no short connections" "$(cat "$work"/*/churn.log "$work"/*/http.log)"
within "$deadline_s" all_long_up || fail "the long transfers do not start" "$(cat "$work"/*/iperf3.log)"
long=$(long_connections)
note "From eu to us: $wan_mbit Mbit/s, $((2 * wan_delay_ms)) ms. Long transfers over IPv4 and IPv6, and HTTP requests, a connection each. Default: $default."
ss_flow

chapter "One policy" "Within a region the kernel's own $near, between regions our cubic 1.0.0, on open connections too."
start_agents
policy 1.0.0
prompt eu1 cat policy.yaml
shown 40 "$(<"$work/eu1/policy.yaml")"
everywhere 6 sluice apply policy.yaml
policy_at=$EPOCHREALTIME
learn_names
note "Why does a connection get what it gets?"
show eu1 6 sluice explain "${v4[us1]}"
expect "between regions: cubic@1.0.0" contains "$out" "cubic@1.0.0"
show eu1 6 sluice explain "${v6[eu2]}"
expect "within the region: kernel:$near" contains "$out" "kernel:$near"
note "What do the sockets run, asked of the kernel?"
show eu1 12 sluice sockets --by version
show eu1 25 sluice status
expect "eu1 is not degraded" exited "$status" 0
note "The same from witnesses that share no code with the agent: ss, and an iterator that reads each socket's CCA at both ends."
ss_flow
both_ends 30 1.0.0
expect "the long connections are the same as before the policy" same "$long" "$(long_connections)"

chapter "An upgrade under way" \
  "cubic 2.0.0 gives up less of its window at a loss. New connections switch at one moment; busy ones move themselves within a
   round trip, the agent moves the rest."
mkdir "$work/bundles/cubic"
cp -r "$SLUICE_BUILD/bundles/cubic/1.0.0" "$work/bundles/cubic/2.0.0"
sed -i 's/^version: .*/version: 2.0.0/; /name: beta_percent,/s/default: 70/default: 80/' "$work/bundles/cubic/2.0.0/bundle.yaml"
show eu1 10 sluice bundle lint "$work/bundles/cubic/2.0.0"
expect "the bundle may go to a host" exited "$status" 0
policy 2.0.0
within "$deadline_s" older_done "$policy_at" || fail "short connections from before the policy do not end"
tally >"$work/before"
show eu1 16 sluice diff policy.yaml
within "$deadline_s" opened_since "$(awk '$1 == "opened" { print $3 }' "$work/before")" 20 || fail "the short connections stop"
everywhere 6 sluice apply policy.yaml
learn_names
churned "$work/before"
expect "there were some before the switch and some after it" both_versions "$seen"
show eu1 4 sluice cca list
expect "cubic@1.0.0 has left the kernel" lacks "$out" 1.0.0
show eu1 12 sluice cca show cubic@2.0.0
expect "the new parameter holds" contains "$out" beta_percent=80
both_ends 12 2.0.0
expect "the long connections are still the same" same "$long" "$(long_connections)"
note "From the command until the last host had switched, migrated and verified: $slowest_ms ms."

chapter "The agents are killed" "All they set up is pinned in the kernel: connections go on as before, and a new agent finds everything."
cp "$work/expected.json" "$work/expected-before.json"
tally >"$work/before"
for host in "${hosts[@]}"; do
  prompt "$host" kill -9 "${agent[$host]}"
  kill -9 "${agent[$host]}"
done
for host in "${hosts[@]}"; do within "$deadline_s" gone "${agent[$host]}" || fail "the agent of $host does not die"; done
show eu1 3 sluice status
expect "no agent answers" exited "$status" 1
churned "$work/before"
expect "the long connections have not noticed" same "$long" "$(long_connections)"
note "New agents:"
start_agents
show eu1 14 sluice status
expect "eu1 is not degraded" exited "$status" 0
both_ends 12 2.0.0
expect "every version has the struct_ops id it had" cmp "$work/expected-before.json" "$work/expected.json"

chapter "A bad version" \
  "The window of cubic 3.0.0 collapses to one segment. The verifier accepts it, lint finds no error: safe for the kernel, and useless."
cp -r "$SLUICE_BUILD/examples/demo/cubic/3.0.0" "$work/bundles/cubic/3.0.0"
show eu1 10 sluice bundle lint "$work/bundles/cubic/3.0.0"
expect "nothing keeps it from going to a host" exited "$status" 0
measure
before_kbit_s=$kbit_s
note "eu to us before: $(mbit "$before_kbit_s")"
policy 2.0.0 3.0.0
everywhere 6 sluice apply policy.yaml
within "$deadline_s" slower_than $((before_kbit_s / 3)) || fail "the throughput does not drop" "$(mbit "$kbit_s")"
note "eu to us with cubic 3.0.0: $(mbit "$kbit_s")"
ss_flow
within "$deadline_s" degraded eu1 || fail "status does not see it" "$(at eu1 sluice status 2>&1)"
show eu1 12 sluice status
command=$(grep -oE 'sluice rollback [a-z0-9_@.]+' <<<"$out" | head -n 1) || fail "status does not name the way out" "$out"
expect "status names the version" contains "$command" cubic@3.0.0
note "The command it names, on every host:"
# shellcheck disable=SC2086  # words of a command
everywhere 6 $command
within "$deadline_s" faster_than $((before_kbit_s * 2 / 3)) || fail "the throughput does not come back" "$(mbit "$kbit_s")"
note "eu to us again: $(mbit "$kbit_s"). The rollback took $slowest_ms ms until the last host had verified it."
show eu1 14 sluice status
expect "cubic@3.0.0 has left the kernel" lacks "$(at eu1 sluice cca list)" 3.0.0
both_ends 12 2.0.0
expect "the long connections are still the same" same "$long" "$(long_connections)"

chapter "Taken back" "down gives every connection back to the kernel's default and removes all that is ours; the traffic goes on."
take_back
measure
expect "the long connections are still the same, with $(mbit "$kbit_s") from eu to us" same "$long" "$(long_connections)"
story_ends
