# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Unfinished work is an issue, not a comment."""

import re

from tree import Finding

TITLE = "no comments that promise later work"
# Written in halves, so that this file does not find itself.
WORDS = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
PATTERN = re.compile(r"\b(" + "|".join(WORDS) + r")\b")
GOOD = {"a.sh": "mktemp -d /tmp/a.XXXXXX\n"}
BAD = [({"a.cpp": f"int a;  // {word}: b\n"}, "a.cpp:1") for word in WORDS]


def check(tree):
    for path in tree.paths:
        for number, line in tree.lines(path):
            if match := PATTERN.search(line):
                yield Finding(path, number, f"{match[0]}: do it now, or open an issue")
