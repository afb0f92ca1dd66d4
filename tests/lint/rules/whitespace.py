# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Text files have no trailing blanks, no carriage returns, and end in one newline."""

from tree import Finding

TITLE = "no trailing whitespace, no carriage return, a newline at the end"
GOOD = {"a.md": "one\n\ntwo\n", "empty": ""}
BAD = [
    ({"a.md": "one \n"}, "a.md:1"),
    ({"a.md": "one\n\t\n"}, "a.md:2"),
    ({"a.md": "one\r\n"}, "a.md:1"),
    ({"a.md": "one\ntwo"}, "a.md:2"),
    ({"a.md": "one\n\n"}, "a.md:2"),
]


def check(tree):
    for path in tree.paths:
        text = tree.read(path)
        if not text:
            continue
        for number, line in tree.lines(path):
            if line.endswith("\r"):
                yield Finding(path, number, "carriage return")
            elif line != line.rstrip():
                yield Finding(path, number, "trailing whitespace")
        if not text.endswith("\n"):
            yield Finding(path, text.count("\n") + 1, "no newline at the end of the file")
        elif text.endswith("\n\n"):
            yield Finding(path, text.count("\n"), "blank lines at the end of the file")
