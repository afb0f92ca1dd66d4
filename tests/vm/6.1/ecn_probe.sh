#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#
# The prober needs nothing of a newer kernel: every verdict on 6.1 too. (The agent's part needs a policy, which 6.1 refuses.)
set -euo pipefail
exec "$SLUICE_BUILD/bin/ecn_probe_test" --gtest_filter='*EcnPath*:EcnAgent.says*:EcnAgent.without*'
