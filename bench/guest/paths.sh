#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# Runs inside the guest of `./dev vm --icount`: one CCA over each path, one line of JSON (bench_flows) a path.
#
#   paths.sh BENCH_FLOWS SECONDS CCA [OBJECT]
#
#   SECONDS   measured on a path of 20 ms; the others take less
#   OBJECT    the BPF object that registers CCA; without it CCA is the kernel's
#
#   label   rate      delay  marks above  flows  what they send
#   plain   400 Mbit  -      -            8      1 MB, an answer, the next 1 MB: no marks, no losses, the link is busy
#   1ms/N   100 Mbit  1 ms   30 kB        1, 8   without end
#   20ms/N  40 Mbit   20 ms  50 kB        1, 8   without end
#
# The queue marks from half of the bandwidth-delay product on: enough for the link to stay busy under who gives way to a mark by 30 %,
# and under DCTCP (RFC 8257 asks for a seventh). It has room for the overshoot of slow start: nothing is lost.
set -euo pipefail
flows=$1 seconds=$2 cca=$3 object=${4:-}
# shellcheck source=bench/guest/path.sh
. "${BASH_SOURCE[0]%/*}/path.sh"

modprobe -q tcp_dctcp || true # a module in some kernels
[[ -z $object ]] || bpftool struct_ops register "$object" /sys/fs/bpf/cca >/dev/null

# marked DELAY_MS RATE_MBIT ABOVE_BYTES WARM_MS MS
marked() {
  local count
  for count in 1 8; do
    path "$2" "$1ms"
    marks "$2" "$3"
    run "$1ms/$count" "$count" --cca "$cca" --queue /run/netns/switch --warm-ms "$4" --ms "$5"
    gone
  done
}

path 400 0
run plain 8 --cca "$cca" --bytes 1000000 --warm-ms 500 --ms 1500
gone
marked 1 100 30000 1000 $((seconds * 400))
marked 20 40 50000 3000 $((seconds * 1000))
