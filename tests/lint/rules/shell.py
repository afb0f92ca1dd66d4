# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Shell scripts are free of what shellcheck knows to go wrong."""

import re
import subprocess

from tree import Finding

TITLE = "shellcheck has nothing to say about shell scripts"
LINE = re.compile(r"^(.*?):(\d+):\d+: \w+: (.*)$")
GOOD = {"a.sh": '#!/bin/bash\necho "$1"\n'}
BAD = [({"a.sh": "#!/bin/bash\ncd /tmp\nrm $1\n"}, "a.sh:3")]


def check(tree):
    paths = [path for path in tree.paths if tree.is_shell(path)]
    if not paths:
        return
    command = ["shellcheck", "-x", "-P", str(tree.root), "-f", "gcc", "-e", "SC2164", "--", *paths]
    result = subprocess.run(command, cwd=tree.root, capture_output=True, text=True)
    if result.returncode > 1:
        raise RuntimeError(f"shellcheck: {result.stderr.strip()}")
    for line in result.stdout.splitlines():
        if match := LINE.match(line):
            yield Finding(match[1], int(match[2]), match[3])
