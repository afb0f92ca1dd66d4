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

churn_connections=600 window_s=2
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

# A process that was just being started may join its cgroup after the kill, hence again and again; without a cgroup to join it ends.
cgroup_gone() {
  [[ -d $cgroup ]] || return 0
  echo 1 >"$cgroup/cgroup.kill"
  find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null
}
# Again and again, because an agent of others that looks for network namespaces may just have one of ours open.
work_gone() { { ! mountpoint --quiet "$work" || umount --recursive "$work"; } && rmdir "$work"; }
# quiet HOST: nothing holds its namespace. Requests, and what only waits for its time to pass, go with it.
quiet() { ! inside "$1" ss -Htan 2>/dev/null | grep -qE '^(ESTAB|SYN-SENT|FIN-WAIT-1|CLOSE-WAIT|CLOSING|LAST-ACK)'; }
cleanup() {
  local status=$? host
  trap - EXIT ERR
  trap '' INT TERM HUP
  set +e
  # A killed process leaves connections with data that nobody acknowledges any more; each would hold its namespace for minutes.
  exec 2>/dev/null # of processes that are killed
  for host in "${hosts[@]}"; do inside "$host" sysctl --quiet -w net.ipv4.tcp_orphan_retries=1; done
  within "$deadline_s" cgroup_gone || status=1
  for host in "${hosts[@]}"; do within "$deadline_s" quiet "$host" || status=1; done
  rm -rf "$bpffs/$instance"-*
  within "$deadline_s" work_gone || status=1
  ((status != 0)) || printf '   Processes, namespaces, cgroups and files of the demonstration are gone too.\n'
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
    {
      echo "$BASHPID" >"$cgroup/agents/cgroup.procs" # so that an interrupted demonstration leaves none of them
      at "$host" "$@"
    } >"$work/$host/out" 2>&1 &
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
  prompt eu1 sluiced --instance "$instance-eu1" --cgroup "$cgroup/eu1" --netns net --socket agent.sock --state-dir state ...
  for host in "${hosts[@]}"; do
    spawn agents "$work/$host/net" "$work/$host/agent.log" \
      sluiced --instance "$instance-$host" --socket "$work/$host/agent.sock" --state-dir "$work/$host/state" \
      --cgroup "$cgroup/$host" --netns "$work/$host/net" --bundle-path "$SLUICE_BUILD/bundles" --bundle-path "$work/bundles" --foreground
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
learn_names() {
  local host
  for host in "${hosts[@]}"; do
    at "$host" sluice cca list --output json |
      jq -r '.ccas[] | select(.origin == "bundle") | "\(.kernel_name) \(.name)@\(.version)"' >>"$work/names"
  done
}

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

# ---- the story -----------------------------------------------------------------------------------------------------------------

# ss_flow: what the kernel itself tells about the long transfer from eu1 to us1.
ss_flow() {
  prompt eu1 "ss -tinO dport = :$flow_port"
  out=$(inside eu1 ss -HtinO "dport = :$flow_port" | sed -E 's/^ESTAB +[0-9]+ +[0-9]+ +//; s/ +/ /g')
  shown 5 "$(awk '{ line = $1 " " $2 " " $3; for (i = 4; i <= NF; i++) if ($i ~ /^(rtt|cwnd|ssthresh|bytes_acked):/) line = line " " $i; print line }' <<<"$out")"
}
same() { [[ $1 == "$2" ]] || { diff <(echo "$1") <(echo "$2"); return 1; }; }
contains() { [[ $1 == *"$2"* ]] || { printf '%s\n' "$1" && return 1; }; }
exited() { [[ $1 == "$2" ]] || { printf 'exit status %s, not %s\n' "$1" "$2" && return 1; }; }
both_versions() { contains "$1" cubic@1.0.0 && contains "$1" cubic@2.0.0; }
lacks() { [[ $1 != *"$2"* ]] || { printf '%s\n' "$1" && return 1; }; }
slower_than() { measure && ((kbit_s < $1)); }
faster_than() { measure && ((kbit_s > $1)); }
# Exit status 3 says that the host is degraded.
degraded() {
  local code=0
  at "$1" sluice status >"$work/$1/out" 2>&1 || code=$?
  ((code == 3))
}
gone() { ! kill -0 "$1" 2>/dev/null; }

# note_ours: what is ours in the kernel, by ids and names: $our_maps, $our_links and the file `names`.
note_ours() {
  local host
  our_maps=$(jq -r '.hosts[].ids[]' "$work/expected.json" | xargs)
  our_links=$(for host in "${hosts[@]}"; do at "$host" sluice status --output json | jq '.hooks[] | select(.ours) | .link_id'; done | xargs)
  : >"$work/names"
  learn_names
}
our_pins() { find "$bpffs" -path "$bpffs/$instance-*" -type f 2>/dev/null || true; }
# left_there: of that, what is still there.
left_there() {
  local id
  for id in $our_maps; do bpftool map show id "$id" 2>/dev/null || true; done
  for id in $our_links; do bpftool link show id "$id" 2>/dev/null || true; done
  tr ' ' '\n' </proc/sys/net/ipv4/tcp_available_congestion_control | grep -Fxf <(cut -d ' ' -f 1 "$work/names") || true
  our_pins
}
none_there() { [[ -z $(left_there) ]]; }
all_there() {
  local id
  for id in $our_maps; do bpftool map show id "$id"; done
  for id in $our_links; do bpftool link show id "$id"; done
  [[ $our_maps && $our_links && $(our_pins) ]]
}
all_native() { recorder "$work"/{eu1,eu2,us1,us2}/net | jq -e 'select((.struct_ops_id // 0) != 0)' && return 1 || return 0; }

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
note_ours
expect "before: $(wc -w <<<"$our_maps") CCAs, $(wc -w <<<"$our_links") links and $(our_pins | wc -l) pins of ours in the kernel" all_there
everywhere 6 sluice down
for host in "${hosts[@]}"; do within "$deadline_s" gone "${agent[$host]}" || fail "the agent of $host does not end"; done
show eu1 2 sysctl net.ipv4.tcp_available_congestion_control
read -ra list <<<"$our_maps"
show eu1 2 bpftool map show id "${list[0]}"
read -ra list <<<"$our_links"
show eu1 2 bpftool link show id "${list[0]}"
show eu1 2 bpftool cgroup tree "$cgroup"
within "$deadline_s" none_there || fail "something of ours is still in the kernel" "$(left_there)"
expect "after: none of them, by bpftool and sysctl" none_there
expect "every socket of the four hosts runs a native CCA" all_native
measure
expect "the long connections are still the same, with $(mbit "$kbit_s") from eu to us" same "$long" "$(long_connections)"
printf '\n%sAll %d steps did what they say.%s\n' "$green" "$step_number" "$plain"
