# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""docs/connection-states.md is a specification only as long as each of its cells is a test and each test a cell."""

import re

from tree import Finding

TITLE = "every cell of docs/connection-states.md has its test, every test of it its cell"
DOCUMENT = "docs/connection-states.md"
TEST = "tests/netns/connection_states_test.cpp"
ROW = re.compile(r"^\| `(\w+)` \|")
CELL = re.compile(r'^    \{"(\w+)", ')
GOOD = {DOCUMENT: "| cell | runs |\n|---|---|\n| `open` | a |\n", TEST: 'const Cell kCells[] = {\n    {"open", opens()},\n};\n'}
BAD = [
    ({**GOOD, DOCUMENT: GOOD[DOCUMENT] + "| `close` | a |\n"}, DOCUMENT + ":4"),
    ({**GOOD, TEST: GOOD[TEST].replace("};", '    {"close", closes()},\n};')}, TEST + ":3"),
    ({**GOOD, DOCUMENT: GOOD[DOCUMENT] + "| `open` | b |\n"}, DOCUMENT + ":4"),
    ({DOCUMENT: GOOD[DOCUMENT]}, DOCUMENT + ":3"),
    ({TEST: GOOD[TEST]}, TEST + ":2"),
]


def names(tree, path, pattern):
    """Name -> line numbers."""
    found = {}
    if path in tree.paths:
        for number, line in tree.lines(path):
            if match := pattern.match(line):
                found.setdefault(match[1], []).append(number)
    return found


def check(tree):
    rows, cells = names(tree, DOCUMENT, ROW), names(tree, TEST, CELL)
    for path, own, other, missing in (
        (DOCUMENT, rows, cells, f"has no test in {TEST}"),
        (TEST, cells, rows, f"has no row in {DOCUMENT}"),
    ):
        for name, numbers in own.items():
            if name not in other:
                yield Finding(path, numbers[0], f"cell '{name}' {missing}")
            for number in numbers[1:]:
                yield Finding(path, number, f"cell '{name}' stands here twice")
