# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
# shellcheck shell=bash
#
# What the demonstrations share: arguments, a network of hosts in two regions, agents, saying and checking, and leaving nothing behind.
# Sourced by examples/demo/NAME.sh, never run. One sets `hosts`, those of the network, and `managed`, those with an agent, and calls
# begin_demo "$@"; then $quick is 1 with --quick, else 0.
#
# The hosts are network namespaces and cgroups, joined by a router in each region and a long line between the routers (wan.py). All
# of it lives in the mount namespace that `./dev demo` makes, with a bpffs of its own. What is said about the system is read from
# the kernel or answered by the product; every step checks what it claims, and the first claim that fails ends the demonstration
# with status 1.
# shellcheck disable=SC2034  # some variables are for the demonstrations
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tools/lib.sh
. "$here/../../tools/lib.sh"
[[ -t 1 ]] || bold='' red='' green='' dim='' plain=''

declare -A v4=([eu1]=10.1.1.2 [eu2]=10.1.2.2 [us1]=10.2.1.2 [us2]=10.2.2.2)
declare -A v6=([eu1]=fd00:1:1::2 [eu2]=fd00:1:2::2 [us1]=fd00:2:1::2 [us2]=fd00:2:2::2)
declare -A agent # process ids
readonly deadline_s=60
bpffs=/sys/fs/bpf/sluice/v1

begin_demo() {
  : "${hosts[@]:?}" "${managed[@]:?}"
  quick=0
  case ${1:-} in
    '') ;;
    --quick) quick=1 ;;
    -h | --help) help_from_head "$0" && exit ;;
    *) usage_error "unknown argument $1" "./dev demo" ;;
  esac
  [[ -n ${SLUICE_BUILD:-} && $(readlink /proc/self/ns/mnt) != "$(readlink /proc/1/ns/mnt)" ]] ||
    die 2 "this needs a build and a mount namespace of its own" "run it as ./dev demo"
  export PATH=$SLUICE_BUILD/bin:$PATH
  instance=demo$$ # of all agents, with the host's name: several demonstrations share one kernel
  pins=/sys/fs/bpf/$instance # of what a demonstration itself loads
  work=
  cgroup=$(findmnt --noheadings --first-only --types cgroup2 --output TARGET)
  home=$cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
  cgroup+=/sluice-$instance
  exec {told}>&1
  trap cleanup EXIT
  trap '((BASH_SUBSHELL)) || fail "line $LINENO: $BASH_COMMAND"' ERR
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  work=$(mktemp -d)
  mount -t tmpfs -o mode=0700 sluice-demo "$work"
  mkdir "$cgroup" "$cgroup/story" "$work/bundles"
  echo $$ >"$cgroup/story/cgroup.procs" # with every command, so that none outlives an interrupted demonstration
}

# ---- nothing stays, however this ends ------------------------------------------------------------------------------------------

# A process that was just being started may join its cgroup after the kill, hence again and again; without a cgroup to join it ends.
cgroup_gone() {
  [[ -d $cgroup ]] || return 0
  echo 1 >"$cgroup/cgroup.kill"
  find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null
}
# Again and again, because an agent of others that looks for network namespaces may just have one of ours open.
work_gone() { [[ -z $work ]] || { { ! mountpoint --quiet "$work" || umount --recursive "$work"; } && rmdir "$work"; }; }
# quiet HOST: nothing holds its namespace. Requests, and what only waits for its time to pass, go with it.
quiet() { ! inside "$1" ss -Htan 2>/dev/null | grep -qE '^(ESTAB|SYN-SENT|FIN-WAIT-1|CLOSE-WAIT|CLOSING|LAST-ACK)'; }
cleanup() {
  local status=$? host
  trap - EXIT ERR
  trap '' INT TERM HUP
  set +e
  # An interrupted command's output may be a file that is to go; and of processes that are killed nothing is told.
  exec 1>&"$told" 2>/dev/null
  # A killed process leaves connections with data that nobody acknowledges any more; each would hold its namespace for minutes.
  for host in "${hosts[@]}"; do inside "$host" sysctl --quiet -w net.ipv4.tcp_orphan_retries=1; done
  echo $$ >"$home/cgroup.procs"
  within "$deadline_s" cgroup_gone || status=1
  for host in "${hosts[@]}"; do within "$deadline_s" quiet "$host" || status=1; done
  rm -rf "$bpffs/$instance"-* "$pins"
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
  local total text=${2//"$work/"/}
  total=$(wc -l <<<"$text")
  head -n "$1" <<<"$text" | sed "s/^/   $dim|$plain /"
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

# everywhere LINES COMMAND...: on all hosts with an agent at once. Shows the first's output; $slowest_ms is how long the last one took.
everywhere() {
  local lines=$1 host begun=${EPOCHREALTIME/./}
  local -A pids
  shift
  prompt "${managed[*]}" "$@"
  for host in "${managed[@]}"; do
    at "$host" "$@" >"$work/$host/out" 2>&1 &
    pids[$host]=$!
  done
  for host in "${managed[@]}"; do
    wait "${pids[$host]}" || fail "$* on $host" "$(<"$work/$host/out")"
  done
  slowest_ms=$(((${EPOCHREALTIME/./} - begun) / 1000))
  out=$(<"$work/${managed[0]}/out")
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
  local host=${managed[0]}
  prompt "$host" sluiced --instance "$instance-$host" --cgroup "$cgroup/$host" --netns net --socket agent.sock --state-dir state ...
  for host in "${managed[@]}"; do
    spawn agents "$work/$host/net" "$work/$host/agent.log" \
      sluiced --instance "$instance-$host" --socket "$work/$host/agent.sock" --state-dir "$work/$host/state" \
      --cgroup "$cgroup/$host" --netns "$work/$host/net" --bundle-path "$SLUICE_BUILD/bundles" --bundle-path "$work/bundles" --foreground
    agent[$host]=$spawned
  done
  for host in "${managed[@]}"; do
    at "$host" sluice status --wait --timeout "$deadline_s" --quiet --no-sockets >"$work/$host/out" 2>&1 ||
      fail "the agent of $host does not answer" "$(<"$work/$host/out")"
  done
}

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

# build_network RATE_MBIT DELAY_MS BUFFER_KB [MARK_KB]: the line is wan.py's.
build_network() {
  local name region net
  for name in eu us "${hosts[@]}"; do
    mkdir "$work/$name"
    touch "$work/$name/net"
    unshare --net="$work/$name/net" true
  done
  for name in "${hosts[@]}" agents network; do mkdir "$cgroup/$name"; done
  for name in "${hosts[@]}"; do
    net=${v4[$name]#10.}
    link "${name:0:2}" "$name" "${net%.2}"
  done
  spawn network "$work/eu/net" "$work/wan.log" "$here/wan.py" "$work/eu/net" "$work/us/net" "$@"
  for region in eu us; do
    within "$deadline_s" inside "$region" ip link set wan up 2>/dev/null || fail "no line between the regions" "$(<"$work/wan.log")"
    inside "$region" sysctl --quiet -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
  done
  inside eu ip -batch - <<<$'route add 10.2.0.0/16 dev wan\nroute add fd00:2::/32 dev wan'
  inside us ip -batch - <<<$'route add 10.1.0.0/16 dev wan\nroute add fd00:1::/32 dev wan'
}

listens() { [[ $(inside "$1" ss -Hltn "sport = :$2") ]]; }

# in_place HOST: the head of a policy document, where the host is and where others are.
in_place() {
  cat <<YAML
apiVersion: sluice/v1
kind: Host
place: {region: ${1:0:2}}
topology:
  - {prefix: 10.1.0.0/16, region: eu}
  - {prefix: "fd00:1::/32", region: eu}
  - {prefix: 10.2.0.0/16, region: us}
  - {prefix: "fd00:2::/32", region: us}
YAML
}

# ---- witnesses -----------------------------------------------------------------------------------------------------------------

# sockets: the recorder's word on every socket of the hosts.
sockets() {
  local names=("${hosts[@]/%//net}")
  recorder "${names[@]/#/"$work/"}"
}

# ss_brief HOST LINES OPTIONS WORDS FILTER: what ss tells about the connections that FILTER picks: ends, CCA, and the words that match WORDS.
# The whole output stays in $out.
ss_brief() {
  prompt "$1" "ss $3 $5"
  out=$(inside "$1" ss -H "$3" "$5" | sed -E 's/^ESTAB +[0-9]+ +[0-9]+ +//; s/ +/ /g')
  shown "$2" "$(awk -v words="$4" '{ line = $1 " " $2; cca = 0
    for (i = 3; i <= NF; i++) if ($i ~ words || (!cca && $(i + 1) ~ /^(wscale|rto):/ && cca = i)) line = line " " $i
    print line }' <<<"$out")"
}

same() { [[ $1 == "$2" ]] || { diff <(echo "$1") <(echo "$2"); return 1; }; }
contains() { [[ $1 == *"$2"* ]] || { printf '%s\n' "$1" && return 1; }; }
lacks() { [[ $1 != *"$2"* ]] || { printf '%s\n' "$1" && return 1; }; }
exited() { [[ $1 == "$2" ]] || { printf 'exit status %s, not %s\n' "$1" "$2" && return 1; }; }
gone() { ! kill -0 "$1" 2>/dev/null; }

# ---- nothing of ours in the kernel ---------------------------------------------------------------------------------------------

# our_ccas: bundles in the kernel, by all agents: MAP-ID KERNEL-NAME NAME@VERSION.
our_ccas() {
  local host
  for host in "${managed[@]}"; do
    at "$host" sluice cca list --output json |
      jq -r '.ccas[] | select(.origin == "bundle" and .map_id > 0) | "\(.map_id) \(.kernel_name) \(.name)@\(.version)"'
  done
}
# note_ours: what is ours in the kernel, by ids and names: $our_maps, $our_links and the file `our_names`.
note_ours() {
  local host
  our_ccas >"$work/out"
  our_maps=$(cut -d ' ' -f 1 "$work/out" | xargs)
  cut -d ' ' -f 2 "$work/out" >"$work/our_names"
  our_links=$(for host in "${managed[@]}"; do at "$host" sluice status --output json | jq '.hooks[] | select(.ours) | .link_id'; done | xargs)
}
our_pins() { find "$bpffs" -path "$bpffs/$instance-*" -type f 2>/dev/null || true; }
# left_there: of that, what is still there.
left_there() {
  local id
  for id in $our_maps; do bpftool map show id "$id" 2>/dev/null || true; done
  for id in $our_links; do bpftool link show id "$id" 2>/dev/null || true; done
  tr ' ' '\n' </proc/sys/net/ipv4/tcp_available_congestion_control | grep -Fxf "$work/our_names" || true
  our_pins
}
none_there() { [[ -z $(left_there) ]]; }
all_there() {
  local id
  for id in $our_maps; do bpftool map show id "$id"; done
  for id in $our_links; do bpftool link show id "$id"; done
  [[ $our_maps && $our_links && $(our_pins) ]]
}
all_native() { sockets | jq -e 'select((.struct_ops_id // 0) != 0)' && return 1 || return 0; }

# take_back: `sluice down` on all hosts, and proof that nothing of ours is left in the kernel.
take_back() {
  local host list
  note_ours
  expect "before: $(wc -w <<<"$our_maps") CCAs, $(wc -w <<<"$our_links") links and $(our_pins | wc -l) pins of ours in the kernel" all_there
  everywhere 6 sluice down
  for host in "${managed[@]}"; do within "$deadline_s" gone "${agent[$host]}" || fail "the agent of $host does not end"; done
  show "${managed[0]}" 2 sysctl net.ipv4.tcp_available_congestion_control
  read -ra list <<<"$our_maps"
  show "${managed[0]}" 2 bpftool map show id "${list[0]}"
  read -ra list <<<"$our_links"
  show "${managed[0]}" 2 bpftool link show id "${list[0]}"
  show "${managed[0]}" 2 bpftool cgroup tree "$cgroup"
  within "$deadline_s" none_there || fail "something of ours is still in the kernel" "$(left_there)"
  expect "after: none of them, by bpftool and sysctl" none_there
  expect "every socket of the ${#hosts[@]} hosts runs a native CCA" all_native
}

story_ends() { printf '\n%sAll %d steps did what they say.%s\n' "$green" "$step_number" "$plain"; }
