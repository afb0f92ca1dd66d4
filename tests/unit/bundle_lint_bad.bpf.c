// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* bundle_lint.bpf.c with its faults switched on. */
#define LINT_BAD
#include "bundle_lint.bpf.c"
