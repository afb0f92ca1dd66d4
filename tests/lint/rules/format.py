# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""C++ looks as .clang-format says."""

import re
import subprocess

from tree import Finding

TITLE = "clang-format has nothing to change"
FORMATTER = "clang-format-19"
WARNING = re.compile(r"^(.*?):(\d+):\d+: (?:error|warning): (.*) \[-Wclang-format-violations\]$")
GOOD = {"src/a.cpp": "int a = 1;\n", "bpf/a.bpf.c": "int   a;\n"}
BAD = [({"src/a.cpp": "int b;\nint   a = 1;\n"}, "src/a.cpp:2")]


def files(tree):
    return [path for path in tree.paths if tree.is_cpp(path)]


def run(tree, *options, paths):
    command = [FORMATTER, f"--style=file:{tree.config / '.clang-format'}", *options, *paths]
    return subprocess.run(command, cwd=tree.root, capture_output=True, text=True)


def check(tree):
    paths = files(tree)
    if not paths:
        return
    result = run(tree, "--dry-run", "--Werror", paths=paths)
    found = {}
    for line in result.stderr.splitlines():
        if match := WARNING.match(line):
            found.setdefault(match[1], []).append(int(match[2]))
    if result.returncode and not found:
        raise RuntimeError(f"{FORMATTER}: {result.stderr.strip()}")
    for path, lines in sorted(found.items()):
        yield Finding(path, lines[0], f"not formatted in {len(lines)} places; ./dev fmt does it")


def fix(tree, paths):
    result = run(tree, "-i", paths=paths or files(tree))
    if result.returncode:
        raise RuntimeError(f"{FORMATTER}: {result.stderr.strip()}")
