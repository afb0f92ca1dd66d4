# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What BPF, C++ and Python share has one definition: bpf/include/sluice/abi. Those headers use nothing else. Types of BPF code alone
may also stand in bpf/include/sluice/bpf; the prefix sl_ is for nobody else, so that a name means one type everywhere."""

import re

from tree import Finding

TITLE = "struct, union and enum sl_* are defined once, in bpf/include/sluice; its abi includes nothing else"
FOLDER = "bpf/include/sluice/abi/"
BPF_ONLY = "bpf/include/sluice/bpf/"
DEFINITION = re.compile(r"^\s*(?:typedef\s+)?(struct|union|enum)\s+(?:class\s+)?(sl_\w+)\s*(?::[^;{]*)?(?:\{|$)")
PYTHON = re.compile(r"^\s*class\s+(sl_\w+)\s*\(")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)')
ALLOWED = re.compile(r"^((sluice/abi/)?\w+\.h|linux/types\.h)$")  # each other, and the types themselves
HEADER = "#include <sluice/abi/types.h>\n#include \"types.h\"\nstruct sl_key {\n\t__u32 a;\n};\n"
GOOD = {
    FOLDER + "a.h": HEADER,
    BPF_ONLY + "a.bpf.h": "#include <bpf/bpf_helpers.h>\nstruct sl_round {\n",
    "src/a.cpp": "struct sl_key key;\nstruct sl_key *f(struct sl_key *key) {\n}\nenum sl_kind kind = {};\nstruct sl_key keys[] = {\n",
}
BAD = [
    ({FOLDER + "a.h": HEADER, "src/a.cpp": "struct sl_key {\n"}, "src/a.cpp:1"),
    ({FOLDER + "a.h": HEADER, FOLDER + "b.h": "\nstruct sl_key\n{\n"}, FOLDER + "b.h:2"),
    ({FOLDER + "a.h": HEADER, BPF_ONLY + "b.bpf.h": "struct sl_key {\n"}, BPF_ONLY + "b.bpf.h:1"),
    ({BPF_ONLY + "a.bpf.h": "struct sl_r {\n", BPF_ONLY + "b.bpf.h": "struct sl_r {\n"}, BPF_ONLY + "b.bpf.h:1"),
    ({"bpf/x.bpf.c": "union sl_value {\n"}, "bpf/x.bpf.c:1"),
    ({"src/a.h": "enum sl_kind : int {\n"}, "src/a.h:1"),
    ({"python/a.py": "class sl_key(ctypes.Structure):\n"}, "python/a.py:1"),
    ({FOLDER + "a.h": "#include <linux/tcp.h>\n"}, FOLDER + "a.h:1"),
]


def check(tree):
    seen = {}
    # The ABI's own headers first, so that it is the copy that is reported.
    for path in sorted(tree.paths, key=lambda p: (not p.startswith(FOLDER), not p.startswith(BPF_ONLY), p)):
        in_abi = path.startswith(FOLDER)
        if not (tree.is_cpp(path) or tree.is_bpf(path) or tree.is_python(path)):
            continue
        for number, line in tree.lines(path):
            name = None
            if match := DEFINITION.match(line):
                name = match[2]
            elif tree.is_python(path) and (match := PYTHON.match(line)):
                name = match[1]
            if name and name in seen:
                yield Finding(path, number, f"{name} is already defined in {seen[name]}: include that header")
            elif name and not path.startswith((FOLDER, BPF_ONLY)):
                yield Finding(path, number, f"{name}: the prefix sl_ is for types of {FOLDER} and {BPF_ONLY}")
            elif name:
                seen[name] = f"{path}:{number}"
            if in_abi and (match := INCLUDE.match(line)) and not ALLOWED.match(match[1]):
                yield Finding(path, number, f"<{match[1]}>: the ABI uses nothing but fixed-width types")
