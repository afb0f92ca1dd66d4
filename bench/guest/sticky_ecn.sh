#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# Runs inside the guest of `./dev vm --icount`: connections under dctcp on a path that marks are rolled back to cubic, which they then
# are under with ECN still negotiated, and taken forward again, by the product itself. Before it, the kernel's cubic with ECN on the same
# path. One line of JSON (bench_flows) for each measured time.
#
#   sticky_ecn.sh BENCH_FLOWS SLUICED SLUICE BUNDLES
#
#   label       measured times
#   native/L    cubic of the kernel, twice
#   sluice/L    dctcp; the rollback and after; cubic, twice; the way forward and after; dctcp
#
# L is DELAY/FLOWS on the paths of paths.sh that mark.
set -euo pipefail
flows=$1 sluiced=$2 sluice=$3 bundles=$4
# shellcheck source=bench/guest/path.sh
. "${BASH_SOURCE[0]%/*}/path.sh"

# The flows go ahead of the agent, as on a CPU of their own, even where it is inside the kernel (programs are verified for milliseconds).
mount -t debugfs debugfs /sys/kernel/debug
echo full >/sys/kernel/debug/sched/preempt

newest() { # BUNDLE
  local all=("$bundles/$1"/*)
  echo "${all[-1]##*/}"
}
cubic=$(newest cubic) dctcp=$(newest dctcp)
export SLUICE_SOCKET=/run/agent.sock
cat >/run/policy.yaml <<END
apiVersion: sluice/v1
kind: Host
place: {region: eu, datacenter: eu1}
topology:
  - {prefix: 10.0.0.0/8, region: eu, datacenter: eu1}
bundles:
  - {name: cubic, version: $cubic}
  - {name: dctcp, version: $dctcp}
transitional: cubic@$cubic
rules:
  - {use: dctcp@$dctcp}
END

# One agent for both ends: one command moves both.
agent() {
  "$sluiced" --foreground --metrics off --socket "$SLUICE_SOCKET" --state-dir /run/agent --bundle-path "$bundles" --log-level warning \
    --netns /run/netns/sender --netns /run/netns/receiver >&2 &
  "$sluice" --quiet --wait apply /run/policy.yaml >&2
}

# lane DELAY_MS RATE_MBIT ABOVE_BYTES FLOWS WARM_MS MS
lane() {
  local times=(--queue /run/netns/switch --warm-ms "$5" --ms "$6")
  path "$2" "$1ms"
  marks "$2" "$3"
  run "native/$1ms/$4" "$4" --cca cubic "${times[@]}" --then ''
  agent
  run "sluice/$1ms/$4" "$4" "${times[@]}" --then "$sluice rollback" --then '' --then '' \
    --then "$sluice apply --clear-rollbacks /run/policy.yaml" --then ''
  "$sluice" --quiet down >&2
  wait
  rm -r /run/agent
  gone
}

for count in 1 8; do
  lane 1 100 30000 "$count" 1000 1500
  lane 20 40 50000 "$count" 3000 3000
done
