# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Every source file names its licence in its first lines."""

from tree import Finding

TITLE = "an SPDX line at the head of every source file"
EXPRESSION = "SPDX-License-Identifier: " + "GPL-2.0-only OR BSD-2-Clause"
GOOD = {
    "src/a.cpp": f"// {EXPRESSION}\nint a;\n",
    "dev": f"#!/bin/bash\n# {EXPRESSION}\n",
    "README.md": "# Prose needs none\n",
}
BAD = [
    ({"src/a.cpp": "int a;\n"}, "src/a.cpp:1"),
    ({"tool": "#!/bin/sh\nexit\n"}, "tool:1"),
    ({"src/a.h": "// SPDX-License-Identifier: " + "MIT\n"}, "src/a.h:1"),
    ({"CMakeLists.txt": "project(x)\n"}, "CMakeLists.txt:1"),
]


def check(tree):
    for path in tree.paths:
        if tree.is_source(path) and not any(EXPRESSION in line for _, line in list(tree.lines(path))[:3]):
            yield Finding(path, 1, f"one of the first three lines must say {EXPRESSION}")
