# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""C++ of the product is free of what clang-tidy (.clang-tidy) reports. Takes ten seconds a file: changed files only, unless all are
asked for. Tests are left out: they look at moved-from objects on purpose, and GoogleTest's macros triple the time."""

import concurrent.futures
import json
import os
import re
import subprocess

from tree import Finding

TITLE = "clang-tidy has nothing to say"
TIDY = "clang-tidy-19"
FOLDERS = ("src/", "tools/", "bench/")
LINE = re.compile(r"^(/.*?):(\d+):\d+: (?:error|warning): (.*)$")
GOOD = {"src/a.cpp": "int twice(int a);\nint twice(int a) { return 2 * a; }\n"}
BAD = [
    ({"src/a.cpp": "#include <utility>\nint f(int* a) {\n  if (a == nullptr) {\n    return *a;\n  }\n  return 1;\n}\n"}, "src/a.cpp:4"),
    ({"src/a.cpp": "struct bad_name {\n  int a;\n};\n"}, "src/a.cpp:1"),
]


def database(tree):
    """{path: directory of its compilation database} of the files to check."""
    if tree.build is None:
        return {path: None for path in tree.paths if path.endswith(".cpp")}
    file = tree.build / "compile_commands.json"
    if not file.exists():
        raise RuntimeError(f"{file} is missing: configure the build first (./dev build)")
    known = {os.path.relpath(entry["file"], tree.root) for entry in json.loads(file.read_text())}
    known &= {path for path in tree.paths if path.startswith(FOLDERS)}
    if not tree.everything:
        known &= tree.changed()
    return {path: tree.build for path in known}


def run(tree, path, build):
    command = [TIDY, "--quiet", f"--config-file={tree.config / '.clang-tidy'}"]
    command += ["-p", str(build), str(tree.root / path)] if build else [str(tree.root / path), "--", "-std=c++20"]
    return subprocess.run(command, capture_output=True, text=True)


def check(tree):
    work = database(tree)
    found = set()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {pool.submit(run, tree, path, build): path for path, build in sorted(work.items())}
        for done, job in enumerate(concurrent.futures.as_completed(jobs), 1):
            result = job.result()
            matches = [match for line in result.stdout.splitlines() if (match := LINE.match(line))]
            # A header is seen by many files and reported once.
            found.update((os.path.relpath(m[1], tree.root), int(m[2]), m[3]) for m in matches)
            if result.returncode and not matches:
                raise RuntimeError(f"{TIDY} {jobs[job]}: {result.stdout}{result.stderr}")
            tree.progress(f"clang-tidy {done}/{len(jobs)} {jobs[job]}")
    for finding in sorted(found):
        yield Finding(*finding)
