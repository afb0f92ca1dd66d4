#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# The demonstration, run by `./dev demo [--quick]`: four hosts in two regions, one agent on each, real traffic; a policy, an upgrade,
# a killed agent, a broken CCA, a rollback, and nothing left at the end.
#
# The hosts are network namespaces and cgroups, joined by a router in each region and a long line between the routers (wan.py). All
# of it lives in the mount namespace that `./dev demo` makes, with a bpffs of its own. What is said about the system is read from
# the kernel or answered by the product; every step checks what it claims, and the first claim that fails ends the demonstration
# with status 1. --quick measures for shorter times; the steps are the same.
set -Eeuo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tools/lib.sh
. "$here/../../tools/lib.sh"
[[ -t 1 ]] || bold='' red='' green='' dim='' plain=''

churn_connections=400 window_s=2
case ${1:-} in
  '') ;;
  --quick) churn_connections=100 window_s=1 ;;
  -h | --help) help_from_head "$0" && exit ;;
  *) usage_error "unknown argument $1" "./dev demo" ;;
esac
[[ -n ${SLUICE_BUILD:-} && $(readlink /proc/self/ns/mnt) != "$(readlink /proc/1/ns/mnt)" ]] ||
  die 2 "this needs a build and a mount namespace of its own" "run it as ./dev demo"

hosts=(eu1 eu2 us1 us2)
declare -A v4=([eu1]=10.1.1.2 [eu2]=10.1.2.2 [us1]=10.2.1.2 [us2]=10.2.2.2)
declare -A v6=([eu1]=fd00:1:1::2 [eu2]=fd00:1:2::2 [us1]=fd00:2:1::2 [us2]=fd00:2:2::2)
readonly wan_mbit=16 wan_delay_ms=20 wan_buffer_kb=80
readonly flow_port=5201 near_port=5202 http_port=8080
readonly deadline_s=60

export PATH=$SLUICE_BUILD/bin:$PATH
instance=demo$$ # of all agents, with the host's name: several demonstrations share one kernel
bpffs=/sys/fs/bpf/sluice/v1
work=$(mktemp -d)
cgroup=$(findmnt --noheadings --first-only --types cgroup2 --output TARGET)/sluice-$instance

# ---- nothing stays, however this ends ------------------------------------------------------------------------------------------

cleanup() {
  local status=$?
  trap - EXIT
  trap '' INT TERM HUP
  set +e
  if [[ -d $cgroup ]]; then
    echo 1 >"$cgroup/cgroup.kill"
    within "$deadline_s" grep -q 'populated 0' "$cgroup/cgroup.events"
    find "$cgroup" -depth -type d -exec rmdir {} +
  fi
  rm -rf "$bpffs/$instance"-*
  umount --recursive "$work"
  rmdir "$work" || status=1
  exit "$status"
}

# ---- saying and checking -------------------------------------------------------------------------------------------------------

# within SECONDS COMMAND...: until it succeeds; fails after the deadline.
within() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < end)) || return 1
    sleep 0.05 # between two looks; nothing depends on its length
  done
}

step_number=0
# chapter TITLE WHY
chapter() {
  step_number=$((step_number + 1))
  printf '\n%s%d  %s%s\n   %s\n' "$bold" "$step_number" "$1" "$plain" "$2"
}
note() { printf '\n   %s\n' "$*"; }

# shown LINES TEXT: the first lines of an output, indented.
shown() {
  local total
  total=$(wc -l <<<"$2")
  head -n "$1" <<<"$2" | sed "s/^/   $dim|$plain /"
  ((total <= $1)) || printf '   %s| ... %d more lines%s\n' "$dim" $((total - $1)) "$plain"
}

prompt() {
  local who=$1
  shift
  printf '\n   %s%s# %s%s\n' "$bold" "$who" "${*//"$work/"/}" "$plain"
}

# fail WHAT [DETAIL]
fail() {
  printf '\n   %sFAILED: %s%s\n' "$red" "$1" "$plain"
  [[ -z ${2:-} ]] || shown 30 "$2"
  local host
  for host in "${hosts[@]}"; do
    [[ ! -s $work/$host/agent.log ]] || shown 8 "agent of $host, the end of its log:"$'\n'"$(tail -n 7 "$work/$host/agent.log")"
  done
  exit 1
}

# expect CLAIM COMMAND...: the claim is printed if the command proves it, and ends the demonstration if not.
expect() {
  local claim=$1 detail
  shift
  detail=$("$@" 2>&1) || fail "$claim" "$detail"
  printf '   %sok%s %s\n' "$green" "$plain" "$claim"
}

# ---- hosts ---------------------------------------------------------------------------------------------------------------------

inside() { nsenter --net="$work/$1/net" "${@:2}"; }

# at HOST COMMAND...: as somebody logged in there would, in the host's own folder.
at() {
  local host=$1
  shift
  (cd "$work/$host" && SLUICE_SOCKET=$work/$host/agent.sock exec nsenter --net="$work/$host/net" "$@")
}

# show HOST LINES COMMAND...: prompt, command, output. The output stays in $out, the exit status in $status.
show() {
  local host=$1 lines=$2
  shift 2
  prompt "$host" "$@"
  status=0
  out=$(at "$host" "$@" 2>&1) || status=$?
  shown "$lines" "$out"
}

# everywhere LINES COMMAND...: on all hosts at once. Shows the first's output; $slowest_ms is how long the last one took.
everywhere() {
  local lines=$1 host begun=${EPOCHREALTIME/./}
  local -A pids
  shift
  prompt "${hosts[*]}" "$@"
  for host in "${hosts[@]}"; do
    at "$host" "$@" >"$work/$host/out" 2>&1 &
    pids[$host]=$!
  done
  for host in "${hosts[@]}"; do
    wait "${pids[$host]}" || fail "$* on $host" "$(<"$work/$host/out")"
  done
  slowest_ms=$(((${EPOCHREALTIME/./} - begun) / 1000))
  out=$(<"$work/${hosts[0]}/out")
  shown "$lines" "$out"
}

# spawn CGROUP NETNS LOG COMMAND...: in the background, until the cgroup is killed; its process id is $spawned.
spawn() {
  local group=$1 netns=$2 log=$3
  shift 3
  (
    echo "$BASHPID" >"$cgroup/$group/cgroup.procs"
    exec nsenter --net="$netns" "$@"
  ) >>"$log" 2>&1 </dev/null &
  spawned=$!
  disown
}

start_agents() {
  local host
  for host in "${hosts[@]}"; do
    spawn agents "$work/$host/net" "$work/$host/agent.log" \
      sluiced --instance "$instance-$host" --socket "$work/$host/agent.sock" --state-dir "$work/$host/state" \
      --cgroup "$cgroup/$host" --netns "$work/$host/net" --bundle-path "$SLUICE_BUILD/bundles" --bundle-path "$work/bundles"
    agent[$host]=$spawned
  done
  for host in "${hosts[@]}"; do
    at "$host" sluice status --wait --timeout "$deadline_s" --quiet --no-sockets >"$work/$host/out" 2>&1 ||
      fail "the agent of $host does not answer" "$(<"$work/$host/out")"
  done
}
declare -A agent

# link REGION HOST NET: a host's eth0 and the port of its router.
link() {
  inside "$1" ip link add "$2" type veth peer name eth0 netns "$work/$2/net"
  inside "$1" ip -batch - <<BATCH
address add 10.$3.1/24 dev $2
address add fd00:${3/./:}::1/64 dev $2 nodad
link set $2 up
BATCH
  inside "$2" ip -batch - <<BATCH
link set lo up
address add ${v4[$2]}/24 dev eth0
address add ${v6[$2]}/64 dev eth0 nodad
link set eth0 up
route add default via 10.$3.1
route add default via fd00:${3/./:}::1
BATCH
}

build_network() {
  local name region
  for name in eu us "${hosts[@]}"; do
    mkdir "$work/$name"
    touch "$work/$name/net"
    unshare --net="$work/$name/net" true
  done
  for name in "${hosts[@]}" agents network; do mkdir "$cgroup/$name"; done
  link eu eu1 1.1
  link eu eu2 1.2
  link us us1 2.1
  link us us2 2.2
  spawn network "$work/eu/net" "$work/wan.log" \
    "$here/wan.py" "$work/eu/net" "$work/us/net" "$wan_mbit" "$wan_delay_ms" "$wan_buffer_kb"
  for region in eu us; do
    within "$deadline_s" inside "$region" ip link set wan up 2>/dev/null || fail "no line between the regions" "$(<"$work/wan.log")"
    inside "$region" sysctl --quiet -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
  done
  inside eu ip -batch - <<<$'route add 10.2.0.0/16 dev wan\nroute add fd00:2::/32 dev wan'
  inside us ip -batch - <<<$'route add 10.1.0.0/16 dev wan\nroute add fd00:1::/32 dev wan'
}

listens() { [[ $(inside "$1" ss -Hltn "sport = :$2") ]]; }

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
  recorder "$work"/{eu1,eu2,us1,us2}/net |
    jq -r "select(.state == \"ESTABLISHED\") | select([.local_port, .remote_port] | any(. == $flow_port or . == $near_port)) | .cookie" | sort
}

# ids VERSION...: the struct_ops ids of our versions of cubic on each host, as JSON for ends.py.
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
  prompt witness "recorder $(printf '%s/net ' "${hosts[@]}")| ends.py"
  out=$(recorder "$work"/{eu1,eu2,us1,us2}/net | "$here/ends.py" "$work/expected.json" 2>&1) ||
    fail "a socket does not run what the policy says" "$out"
  shown "$lines" "$out"
}

# tally: "opened - N", "failed - N" and "client|server CCA N" of all short connections so far.
tally() {
  jq -rs '"opened - \(map(.opened) | add)", "failed - \(map(.failed) | add)",
    ([.[].ends[] | to_entries[] | .key as $side | .value | to_entries[] | {side: $side, cca: .key, n: .value}] |
      group_by([.side, .cca])[] | "\(.[0].side) \(.[0].cca) \(map(.n) | add)")' "$work"/{eu1,us2}/churn.json
}
opened() { tally | awk '$1 == "opened" { print $3 }'; }
churning() { [[ -s $work/eu1/churn.json && -s $work/us2/churn.json ]]; }
opened_since() {
  local now
  now=$(opened) && ((${now:-0} >= $1 + $2))
}
# tally_since FILE: what came since.
tally_since() { tally | awk 'NR == FNR { old[$1 $2] = $3; next } $3 - old[$1 $2] { print $1, $2, $3 - old[$1 $2] }' "$1" -; }

# churned BEFORE CLAIM: waits for enough connections since, and proves that none failed and none ran the default.
churned() {
  local before=$1 seen
  within "$deadline_s" opened_since "$(awk '$1 == "opened" { print $3 }' "$before")" "$churn_connections" ||
    fail "fewer than $churn_connections short connections in $deadline_s s" "$(tally; cat "$work"/*/churn.json)"
  seen=$(tally_since "$before")
  note "Short connections meanwhile, each asked at both ends (TCP_CONGESTION), kernel names:"
  shown 20 "$(awk '$1 == "opened" { print "opened", $3 } $1 == "failed" { print "failed", $3 }
    $1 == "client" || $1 == "server" { n[$2 " " $1] = $3; name[$2] } END { for (c in name) printf "%-16s client end %5d   server end %5d\n", c, n[c " client"], n[c " server"] }' <<<"$seen" | sort)"
  expect "none failed, none on the default ($default)" \
    awk -v ours="$ours $near" 'BEGIN { split(ours, list); for (i in list) good[list[i]] } $1 == "failed" || ($1 != "opened" && !($2 in good)) { print; bad = 1 } END { exit bad }' <<<"$seen"
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
      cat <<YAML
apiVersion: sluice/v1
kind: Host
place: {region: ${host:0:2}}
topology:
  - {prefix: 10.1.0.0/16, region: eu}
  - {prefix: "fd00:1::/32", region: eu}
  - {prefix: 10.2.0.0/16, region: us}
  - {prefix: "fd00:2::/32", region: us}
bundles:
YAML
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

# The kernel names of our CCAs on all hosts, now.
our_names() {
  local host
  for host in "${hosts[@]}"; do
    at "$host" sluice cca list --output json | jq -r '.ccas[] | select(.origin == "bundle") | .kernel_name'
  done | xargs
}

# ---- the story -----------------------------------------------------------------------------------------------------------------

# ss_flow: what the kernel itself tells about the long transfer from eu1 to us1.
ss_flow() {
  prompt eu1 "ss -tinO dport = :$flow_port"
  out=$(inside eu1 ss -HtinO "dport = :$flow_port" | sed -E 's/^ESTAB +[0-9]+ +[0-9]+ +//; s/ +/ /g')
  shown 3 "$(awk '{ line = $1 " " $2 " " $3; for (i = 4; i <= NF; i++) if ($i ~ /^(rtt|cwnd|ssthresh|bytes_acked):/) line = line " " $i; print line }' <<<"$out")"
}
same() { [[ $1 == "$2" ]] || { diff <(echo "$1") <(echo "$2"); return 1; }; }
contains() { [[ $1 == *"$2"* ]] || { printf '%s\n' "$1" && return 1; }; }
exited() { [[ $1 == "$2" ]] || { printf 'exit status %s, not %s\n' "$1" "$2" && return 1; }; }
gone() { ! kill -0 "$1" 2>/dev/null; }

trap cleanup EXIT
trap '((BASH_SUBSHELL)) || fail "line $LINENO: $BASH_COMMAND"' ERR
trap 'exit 130' INT
trap 'exit 143' TERM HUP
mount -t tmpfs -o mode=0700 sluice-demo "$work"
mkdir "$cgroup" "$work/bundles"

chapter "Two regions, two hosts each, and traffic on the kernel's default" \
  "Before Sluice, every connection runs whatever net.ipv4.tcp_congestion_control says, near and far alike."
build_network
default=$(inside eu1 sysctl -n net.ipv4.tcp_congestion_control)
near=$(inside eu1 sysctl -n net.ipv4.tcp_available_congestion_control | tr ' ' '\n' | grep -xE 'bbr|reno|cubic' | grep -vx "$default" | head -n 1)
start_traffic
within "$deadline_s" churning || fail "no short connections" "$(cat "$work"/*/churn.log "$work"/*/http.log)"
long=$(long_connections)
note "From eu to us: $wan_mbit Mbit/s, $((2 * wan_delay_ms)) ms. Long transfers over IPv4 and IPv6, and HTTP requests, a connection each. Default: $default."
ss_flow

chapter "One policy" "Within a region the kernel's own $near, between regions our cubic 1.0.0, on open connections too."
start_agents
policy 1.0.0
prompt eu1 cat policy.yaml
shown 40 "$(<"$work/eu1/policy.yaml")"
everywhere 12 sluice apply policy.yaml
note "Why does a connection get what it gets?"
show eu1 20 sluice explain "${v4[us1]}"
expect "between regions: cubic@1.0.0" contains "$out" "cubic@1.0.0"
show eu1 20 sluice explain "${v6[eu2]}"
expect "within the region: kernel:$near" contains "$out" "kernel:$near"
note "What do the sockets run, asked of the kernel?"
show eu1 12 sluice sockets --by version
show eu1 25 sluice status
expect "eu1 is not degraded" exited "$status" 0
note "The same from witnesses that share no code with the agent: ss, and an iterator that reads each socket's CCA at both ends."
ss_flow
both_ends 30 1.0.0
expect "the long connections are the same as before the policy" same "$long" "$(long_connections)"

chapter "An upgrade under way" "cubic 2.0.0 gives up less of its window at a loss. New connections switch at one moment, open ones are migrated."
cp -r "$SLUICE_BUILD/bundles/cubic/1.0.0" "$work/bundles/cubic-2.0.0"
