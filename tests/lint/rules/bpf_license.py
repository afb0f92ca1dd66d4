# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The kernel reads a BPF object's licence from its section "license"; GPL-only helpers are refused without one."""

import re

from tree import Finding

TITLE = 'every BPF object declares SEC("license") = "Dual BSD/GPL", once'
LICENSE = re.compile(r'\[\]\s*SEC\("license"\)\s*=\s*"Dual BSD/GPL"\s*;')
LINE = 'char LICENSE[] SEC("license") = "Dual BSD/GPL";\n'
GOOD = {"bpf/cca/a/a.bpf.c": LINE, "bpf/include/sluice/bpf/b.bpf.h": "\n"}
BAD = [
    ({"bpf/cca/a/a.bpf.c": "int a;\n"}, "bpf/cca/a/a.bpf.c:1"),
    ({"tests/bpf/a.bpf.c": LINE.replace("Dual BSD/GPL", "MIT")}, "tests/bpf/a.bpf.c:1"),
    ({"bpf/a.bpf.c": LINE * 2}, "bpf/a.bpf.c:1"),
]


def check(tree):
    for path in tree.paths:
        if path.endswith(".bpf.c") and len(LICENSE.findall(tree.read(path) or "")) != 1:
            yield Finding(path, 1, f"needs exactly one line: {LINE.strip()}")
