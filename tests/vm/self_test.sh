#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# What ./dev vm promises: the kernel asked for, the command's output, error output and status, modules, the host's files, write-back,
# a deadline, and the same bytes twice with --icount.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
vm=$root/tools/vm/vm
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

failed=0
# expect WHAT WANTED GOT
expect() {
  if [[ $2 == "$3" ]]; then
    echo "ok: $1"
  else
    printf 'FAILED: %s\n  wanted: %q\n  got:    %q\n' "$1" "$2" "$3"
    failed=1
  fi
}
# run ARG...: leaves out, err and status.
run() {
  status=0
  "$vm" "$@" >"$tmp/out" 2>"$tmp/err" || status=$?
  out=$(<"$tmp/out")
  err=$(<"$tmp/err")
}

# Single-quoted programs are for the guest's shell.
# shellcheck disable=SC2016
for series in 6.1 6.12; do
  "$vm" --kernel "$series" --fetch
  run --kernel "$series" -- bash -c 'uname -r | cut -d . -f 1,2; echo to stderr >&2; exit 7'
  expect "$series: the kernel and stdout" "$series" "$out"
  expect "$series: stderr" "to stderr" "$err"
  expect "$series: exit status" 7 "$status"

  run --kernel "$series" --rw "$tmp" --env "VALUE=two words" -- bash -c '
    modprobe tcp_dctcp && ip link add left type veth peer name right && tc qdisc add dev left root netem delay 1ms &&
      mountpoint -q /sys/fs/bpf && test -e "$1" && printf %s "$VALUE" >"$2/written"' guest "$root/dev" "$tmp"
  expect "$series: modules, bpffs, the host's files" "0 " "$status $err"
  expect "$series: written back" "two words" "$(cat "$tmp/written" 2>/dev/null)"

  # Random numbers, times and scheduling all show; another seed must differ, or this could not fail.
  trace='ip link add left type veth peer name right; ip link set left up; ip link set right up
    tc qdisc add dev left root netem delay 3ms loss 30%; ping -c 20 -i 0.01 -W 1 -I left 192.0.2.1
    od -x -N 16 /dev/urandom; cat /proc/uptime /proc/interrupts; tc -s qdisc show dev left; ip link'
  for attempt in 1 2; do
    "$vm" --kernel "$series" --icount --seed 5 -- bash -c "$trace" >"$tmp/trace$attempt" 2>&1 || true
  done
  "$vm" --kernel "$series" --icount --seed 6 -- bash -c "$trace" >"$tmp/trace3" 2>&1 || true
  expect "$series: the trace is complete" 1 "$(grep -c '^qdisc netem' "$tmp/trace1")"
  expect "$series: one seed, the same bytes twice" "" "$(diff "$tmp/trace1" "$tmp/trace2" 2>&1 | head -n 5)"
  expect "$series: another seed, other bytes" 1 "$(cmp -s "$tmp/trace1" "$tmp/trace3" && echo 0 || echo 1)"
done

run --timeout 10 -- sh -c 'while :; do :; done'
expect "a command that never ends is stopped" 124 "$status"
run --kernel 9.9 -- true
expect "an unknown kernel is refused" 125 "$status"
exit "$failed"
