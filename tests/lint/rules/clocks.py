# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The wall clock can be set at any moment: nothing waits by it. Who needs the time of day for a record asks base/clock.h."""

import re

from tree import Finding

TITLE = "no wall clock in the product but through Clock::wall_ns()"
CLOCK = "src/base/clock.cpp"
WALL = re.compile(
    r"\b(?:system_clock|high_resolution_clock|CLOCK_REALTIME\w*|gettimeofday|GPR_CLOCK_REALTIME|bpf_ktime_get_tai_ns)\b|\bstd::time\(|(?<![\w.>])::time\("
)
GOOD = {
    CLOCK: "now_ns(CLOCK_REALTIME);\n",
    "src/a.cpp": "auto t = std::chrono::steady_clock::now();\nclock.wall_ns();\nuptime(1);\n",
    "tests/a.cpp": "std::chrono::system_clock::now();\n",
}
BAD = [
    ({"src/a.cpp": "\nauto t = std::chrono::system_clock::now();\n"}, "src/a.cpp:2"),
    ({"src/a.h": "clock_gettime(CLOCK_REALTIME, &now);\n"}, "src/a.h:1"),
    ({"src/a.cpp": "srand(std::time(nullptr));\n"}, "src/a.cpp:1"),
    ({"bpf/a.bpf.c": "bpf_ktime_get_tai_ns();\n"}, "bpf/a.bpf.c:1"),
]


def check(tree):
    for path in tree.paths:
        if not path.startswith(("src/", "bpf/")) or path == CLOCK:
            continue
        for number, line in tree.lines(path):
            if match := WALL.search(line):
                yield Finding(path, number, f"{match[0]}: use steady_clock or Clock::monotonic_ns(); for records Clock::wall_ns()")
