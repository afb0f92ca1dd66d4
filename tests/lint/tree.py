# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a lint rule sees: the tracked files of a source tree.

A rule is a module in tests/lint/rules with
    TITLE    one line: what it demands
    GOOD     {path: text}: a tree without findings
    BAD      [({path: text}, "path:line")]: trees with exactly that finding
    check(tree) -> iterable of Finding
"""

import functools
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

# Inputs of the fuzzers are what they are.
INPUTS = ("tests/fuzz/corpus/",)
CPP = (".cpp", ".cc", ".h", ".hpp")


class Finding(NamedTuple):
    path: str
    line: int
    message: str


class Tree:
    """A source tree. `paths` are relative; only regular files that git tracks, or all where there is no git."""

    def __init__(self, root, build=None, everything=True, config=None):
        self.root = Path(root)
        self.build = Path(build) if build else None  # a configured build directory (compile_commands.json)
        self.everything = everything  # False: rules that take minutes look at changed files only
        self.config = Path(config) if config else self.root  # holds .clang-format and .clang-tidy

    def git(self, *arguments):
        # The tests run as root in a tree that may belong to somebody else.
        command = ["git", "-c", "safe.directory=*", "-C", str(self.root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    @functools.cached_property
    def paths(self):
        if (self.root / ".git").exists():
            names = self.git("ls-files", "-z").split("\0")
        else:
            names = [str(p.relative_to(self.root)) for p in self.root.rglob("*")]
            names = [n for n in names if not n.startswith("build/")]
        names = [n for n in names if n and not n.startswith(INPUTS)]
        # A deleted file stays tracked until the commit.
        return sorted(n for n in names if (self.root / n).is_file() and not (self.root / n).is_symlink())

    @functools.lru_cache(maxsize=None)
    def read(self, path):
        """The text of a file; None for a binary one."""
        data = (self.root / path).read_bytes()
        return None if b"\0" in data else data.decode("utf-8", errors="replace")

    def lines(self, path):
        """(number, line) pairs, lines without their newline."""
        return enumerate((self.read(path) or "").split("\n"), 1)

    def changed(self):
        """Files that differ from the upstream branch, or from the parent commit where there is none."""
        for base in ("@{upstream}", "HEAD~1"):
            try:
                return set(self.git("diff", "--name-only", "-z", "--diff-filter=d", base).split("\0")) - {""}
            except subprocess.CalledProcessError:
                continue
        return set(self.paths)  # the first commit

    def is_cpp(self, path):
        """C++ and C of user space; BPF C is kernel style and has its own rules."""
        return path.endswith((*CPP, ".c")) and not self.is_bpf(path)

    def is_bpf(self, path):
        # *_abi.h: what a BPF program of the tests shares with its user
        return path.startswith("bpf/") or path.endswith((".bpf.c", ".bpf.h", "_abi.h"))

    def interpreter(self, path):
        """The program of a #! line, such as "bash"; "" without one."""
        first = (self.read(path) or "").split("\n", 1)[0]
        if not first.startswith("#!"):
            return ""
        words = first[2:].split()
        return os.path.basename(words[1] if words[0].endswith("/env") and len(words) > 1 else words[0])

    def is_shell(self, path):
        return path.endswith((".sh", ".bash")) or self.interpreter(path) in ("sh", "bash")

    def is_python(self, path):
        return path.endswith(".py") or self.interpreter(path).startswith("python")

    def is_cmake(self, path):
        return path.endswith((".cmake", "CMakeLists.txt"))

    def is_source(self, path):
        return (
            path.endswith((*CPP, ".c", ".proto"))
            or bool(self.interpreter(path))
            or self.is_shell(path)
            or self.is_python(path)
            or self.is_cmake(path)
        )
