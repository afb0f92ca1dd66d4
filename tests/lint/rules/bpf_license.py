# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The kernel reads a BPF object's licence from its section "license"; GPL-only helpers are refused without one."""

import posixpath
import re

from tree import Finding

TITLE = 'every BPF object declares SEC("license") = "Dual BSD/GPL" once, itself or in a header it includes'
LICENSE = re.compile(r'\[\]\s*SEC\("license"\)\s*=\s*"([^"]*)"\s*;')
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)', re.MULTILINE)
DUAL = "Dual BSD/GPL"
LINE = f'char LICENSE[] SEC("license") = "{DUAL}";\n'
SDK = "bpf/include/sluice/bpf/cca.bpf.h"
GOOD = {
    SDK: LINE,
    "bpf/cca/a/a.bpf.c": "#include <sluice/bpf/cca.bpf.h>\n",
    "tests/bpf/b.bpf.c": LINE,
    "tests/bpf/c.bpf.c": '#include "b.bpf.c"\n',
}
BAD = [
    ({"bpf/cca/a/a.bpf.c": "int a;\n"}, "bpf/cca/a/a.bpf.c:1"),
    ({"tests/bpf/a.bpf.c": LINE.replace(DUAL, "MIT")}, "tests/bpf/a.bpf.c:1"),
    ({"bpf/a.bpf.c": LINE * 2}, "bpf/a.bpf.c:1"),
    ({SDK: LINE, "bpf/a.bpf.c": "#include <sluice/bpf/cca.bpf.h>\n" + LINE}, "bpf/a.bpf.c:1"),
]


def licences(tree, path, seen):
    """The licences declared by a file and what it includes from this tree."""
    if path in seen or path not in tree.paths:
        return []
    seen.add(path)
    text = tree.read(path) or ""
    found = LICENSE.findall(text)
    for header in INCLUDE.findall(text):
        for folder in (posixpath.dirname(path), "bpf/include"):
            found += licences(tree, posixpath.normpath(posixpath.join(folder, header)), seen)
    return found


def check(tree):
    for path in tree.paths:
        if path.endswith(".bpf.c") and (found := licences(tree, path, set())) != [DUAL]:
            yield Finding(path, 1, f"declares {found or 'no licence'}; needs exactly one line: {LINE.strip()}")
