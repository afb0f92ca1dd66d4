#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# Runs inside a guest: the tests of a build directory, but lint (nothing of the kernel's) and the full tier (guests in guests).
#
#   suite.sh BUILD
set -euo pipefail
# A guest has no udev to make /dev/net/tun, and BPF programs load no module of a CCA that they name.
modprobe -a tun tcp_bbr tcp_dctcp
# Emulated, a packet costs ten times as much.
export SLUICE_PACKETS=100000
ctest --test-dir "$1" --output-on-failure --no-tests=error --timeout 3000 -LE '^(full|lint)$'
