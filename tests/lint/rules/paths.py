# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The tree works wherever it is cloned: no directory of one machine, no package mirror's name."""

import re

from tree import Finding

TITLE = "no paths of a particular machine, no package registry hosts"
# Written in pieces, so that this file does not find itself.
ROOTS = "|".join(("wo" + "rk", "ro" + "ot", "ho" + r"me/[a-z_][\w-]*", "Us" + r"ers/\w+"))
HOSTS = [
    ".".join(host)
    for host in (
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("snapshot", "debian", "org"),
        ("archive", "ubuntu", "com"),
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("registry", "npmjs", "org"),
        ("proxy", "golang", "org"),
        ("crates", "io"),
        ("docker", "io"),
        ("ghcr", "io"),
        ("quay", "io"),
    )
]
PATH = re.compile(r"(?<![\w.})/*-])/(?:" + ROOTS + r")(?![\w-])")
HOST = re.compile(r"(?<![\w.-])(?:" + "|".join(map(re.escape, HOSTS)) + r")(?![\w-])")
GOOD = {"a.sh": 'cd "$base"/src; ls build' + "/wo" + "rk; cat $dir" + "/ro" + "ot x/home/" + "me; echo /ro" + "oted\n"}
BAD = [
    ({"a.sh": "cd /wo" + "rk/main\n"}, "a.sh:1"),
    ({"a.cpp": "\n" + 'open("/ro' + 'ot/.cache")\n'}, "a.cpp:2"),
    ({"a.md": "`/ho" + "me/alice`\n"}, "a.md:1"),
    ({"a.txt": "http://deb.deb" + "ian.org/debian\n"}, "a.txt:1"),
    ({"tools/a": "pypi" + ".org\n"}, "tools/a:1"),
]


def check(tree):
    for path in tree.paths:
        for number, line in tree.lines(path):
            if match := PATH.search(line):
                yield Finding(path, number, f"'{match[0]}' is a path of one machine: derive it, or make it a parameter")
            if match := HOST.search(line):
                yield Finding(path, number, f"'{match[0]}' is a registry host: use what the machine is configured with")
