#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Every lint rule accepts its good tree and finds exactly the planted fault in each bad one."""

import importlib
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "rules")]
sys.dont_write_bytecode = True
from tree import Tree  # noqa: E402


def findings(rule, files):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in files.items():
            target = Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode())
        tree = Tree(folder, config=HERE.parent.parent)
        tree.progress = lambda text: None
        return [f"{found.path}:{found.line}" for found in rule.check(tree)]


class Rules(unittest.TestCase):
    """One test a rule, added below."""


def test_of(rule):
    def test(self):
        self.assertTrue(rule.TITLE)
        self.assertEqual(findings(rule, rule.GOOD), [])
        self.assertGreater(len(rule.BAD), 0)
        for files, place in rule.BAD:
            with self.subTest(place=place, files=list(files)):
                self.assertEqual(findings(rule, files), [place])

    return test


RULES = sorted(path.stem for path in (HERE / "rules").glob("*.py"))
for name in RULES:
    setattr(Rules, f"test_{name}", test_of(importlib.import_module(name)))


class Tracked(unittest.TestCase):
    def test_an_untracked_file_is_not_looked_at(self):
        import subprocess

        with tempfile.TemporaryDirectory() as folder:
            for command in (["init", "-q"], ["add", "a.md"]):
                (Path(folder) / "a.md").write_text("a\n")
                subprocess.run(["git", "-C", folder, *command], check=True)
            (Path(folder) / "b.md").write_text("b\n")
            self.assertEqual(Tree(folder).paths, ["a.md"])


if __name__ == "__main__":
    unittest.main()
