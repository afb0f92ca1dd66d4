#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# On a kernel that is too old (6.1 lacks struct_ops links, 6.4): the agent starts, every command says what is missing and since
# when it exists, nothing is changed and nothing is left behind.
set -euo pipefail
bin=$SLUICE_BUILD/bin
tmp=$(mktemp -d)
trap 'kill "${agent:-}" 2>/dev/null || true; rm -rf "$tmp"' EXIT
export SLUICE_SOCKET=$tmp/agent.sock
failed=0

# expect WHAT STATUS PATTERN COMMAND...: exit status and, in the output, an extended regular expression.
expect() {
  local what=$1 wanted=$2 pattern=$3 status=0
  shift 3
  "$@" >"$tmp/out" 2>&1 || status=$?
  if [[ $status == "$wanted" ]] && grep -Eq -- "$pattern" "$tmp/out"; then
    echo "ok: $what"
  else
    printf 'FAILED: %s (%s): status %s, wanted %s and /%s/:\n' "$what" "$*" "$status" "$wanted" "$pattern"
    sed 's/^/    /' "$tmp/out"
    failed=1
  fi
}

cat >"$tmp/policy.yaml" <<'YAML'
apiVersion: sluice/v1
kind: Host
place: {region: eu}
bundles:
  - {name: cubic, version: 1.0.0}
rules:
  - {match: {}, use: "cubic@1.0.0"}
YAML

before=$(sysctl -n net.ipv4.tcp_available_congestion_control)
expect "doctor names struct_ops links, their kernel and the way out" 3 'struct_ops-link +missing' "$bin/sluice" doctor
expect "doctor without an agent: since which kernel" 3 '6\.4' "$bin/sluice" doctor
expect "doctor as JSON" 3 '"min_kernel": ?"6\.4"' "$bin/sluice" --output json doctor
expect "a command without an agent says how to start one" 1 'sluice up' "$bin/sluice" status

"$bin/sluiced" --state-dir "$tmp/state" --socket "$SLUICE_SOCKET" --metrics off --log-level error &
agent=$!
expect "the agent serves" 0 'idle' "$bin/sluice" --wait --timeout 60 status
expect "apply names what it needs and since which kernel" 1 'needs Linux 6\.[0-9]+ or newer, this kernel is 6\.1' "$bin/sluice" apply "$tmp/policy.yaml"
expect "status: nothing was applied" 0 'idle' "$bin/sluice" status
expect "explain without a policy" 4 'no policy' "$bin/sluice" explain 10.0.0.1
expect "sockets without a policy" 4 'no policy' "$bin/sluice" sockets
expect "migrate without a policy" 4 'no policy' "$bin/sluice" migrate
expect "rollback without a policy" 4 'no policy' "$bin/sluice" rollback
expect "cca list shows the native ones" 0 'reno' "$bin/sluice" cca list
expect "audit reads the hook without a policy" 0 'idle' "$bin/sluice" audit
expect "events tell of the start" 0 'started' "$bin/sluice" events
expect "bundle list needs no kernel feature" 0 'cubic' "$bin/sluice" bundle list
expect "a document with an error is still refused by line" 1 'bad\.yaml:[0-9]+:[0-9]+' bash -c "printf 'kind: Hots\n' >$tmp/bad.yaml; '$bin/sluice' apply $tmp/bad.yaml"
expect "down has nothing to take back" 0 . "$bin/sluice" down

after=$(sysctl -n net.ipv4.tcp_available_congestion_control)
[[ $before == "$after" ]] || { echo "FAILED: congestion controls were '$before', are '$after'"; failed=1; }
left=$(find /sys/fs/bpf -mindepth 1 -name 'sluice*')
[[ -z $left ]] || { echo "FAILED: left behind: $left"; failed=1; }
exit "$failed"
