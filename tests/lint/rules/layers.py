# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Arrows only run down: the includes of src/NAME follow the DEPS that src/CMakeLists.txt declares, and third-party headers stay in
the one library that wraps them."""

import re

from tree import Finding

TITLE = "includes follow the layers of docs/architecture.md"
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LIBRARY = re.compile(r"sluice_library\(\s*(\w+)\s+FLOOR\s+\d+((?:\s+[^\s()]+)*)\s*\)")
KEYWORDS = ("DEPS", "LINK")

# Third-party headers -> the libraries that may include them.
WRAPPED = (
    (re.compile(r"^(bpf|xdp)/"), {"bpfio"}),
    (re.compile(r"^(libelf|gelf)\.h$"), {"bundle"}),
    (re.compile(r"^archive(_entry)?\.h$"), {"bundle"}),
    (re.compile(r"^(grpc|grpcpp|google/protobuf)/|\.pb\.h$"), {"wire", "agent", "controller", "cli"}),
    (re.compile(r"^(sqlite3\.h|SQLiteCpp/)"), {"agent", "controller"}),
    (re.compile(r"^prometheus/"), {"agent", "controller"}),
    (re.compile(r"^httplib\.h$"), {"controller"}),
    (re.compile(r"^yaml-cpp/"), {"bundle", "policy", "cli", "lab", "controller"}),
    (re.compile(r"^CLI/"), {"cli", "agent", "controller", "lab"}),
)
# policy and the collective model are pure: no I/O, no clock, no threads.
PURE = ("src/policy/", "src/coll/model/")
IMPURE = re.compile(
    r"^(thread|mutex|shared_mutex|condition_variable|future|atomic|fstream|iostream|filesystem|random|ctime|time\.h|cstdio|"
    r"unistd\.h|fcntl\.h|sys/.*)$"
)
# The traffic program and the recorders of the harness judge the agent: they may not share its code.
JUDGES = ("tests/harness/",)
JUDGED = ("agent", "policy")

CMAKE = "sluice_library(base FLOOR 1 LINK fmt::fmt)\nsluice_library(bpfio FLOOR 2 DEPS base)\nsluice_library(net FLOOR 2 DEPS base)\n" \
    "sluice_library(bundle FLOOR 2 DEPS base LINK x)\nsluice_library(policy FLOOR 3 DEPS bundle)\nsluice_library(agent FLOOR 4 DEPS policy bpfio\n  LINK y)\n"
GOOD = {
    "src/CMakeLists.txt": CMAKE,
    "src/policy/a.cpp": '#include "policy/a.h"\n#include "bundle/b.h"\n#include "base/result.h"\n#include <vector>\n#include <sluice/abi/cca.h>\n',
    "src/bpfio/a.cpp": "#include <bpf/libbpf.h>\n",
    "src/agent/a.cpp": '#include "bpfio/object.h"\n#include <thread>\n',
    "bpf/cca/a.bpf.c": "#include <bpf/bpf_helpers.h>\n",
    "tests/harness/a.cpp": '#include "net/netns.h"\n',
}
BAD = [
    ({"src/CMakeLists.txt": CMAKE, "src/base/a.cpp": '\n#include "policy/a.h"\n'}, "src/base/a.cpp:2"),
    ({"src/CMakeLists.txt": CMAKE, "src/bpfio/a.h": '#include "net/netns.h"\n'}, "src/bpfio/a.h:1"),
    ({"src/CMakeLists.txt": CMAKE, "src/agent/a.cpp": "#include <bpf/bpf.h>\n"}, "src/agent/a.cpp:1"),
    ({"src/CMakeLists.txt": CMAKE, "src/agent/a.cpp": "#include <gelf.h>\n"}, "src/agent/a.cpp:1"),
    ({"src/CMakeLists.txt": CMAKE, "src/policy/a.cpp": "#include <thread>\n"}, "src/policy/a.cpp:1"),
    ({"src/CMakeLists.txt": CMAKE + "sluice_library(coll FLOOR 3 DEPS base)\n", "src/coll/model/a.cpp": "#include <random>\n"},
     "src/coll/model/a.cpp:1"),
    ({"src/CMakeLists.txt": CMAKE, "src/net/a.cpp": "#include <sluice/bpf/cca.bpf.h>\n"}, "src/net/a.cpp:1"),
    ({"src/CMakeLists.txt": CMAKE, "src/net/a.cpp": '#include "../base/result.h"\n'}, "src/net/a.cpp:1"),
    ({"src/CMakeLists.txt": CMAKE, "src/other/a.cpp": "int a;\n"}, "src/other/a.cpp:1"),
    ({"src/CMakeLists.txt": CMAKE, "tests/harness/a.cpp": '#include "policy/a.h"\n'}, "tests/harness/a.cpp:1"),
]


def declared(tree):
    """{library: libraries it may include}, closed over DEPS, from src/CMakeLists.txt, the one definition."""
    path = "src/CMakeLists.txt"
    text = re.sub(r"#.*", "", tree.read(path)) if path in tree.paths else ""
    direct = {}
    for name, words in LIBRARY.findall(text):
        keyword, direct[name] = None, set()
        for word in words.split():
            if word in KEYWORDS:
                keyword = word
            elif keyword == "DEPS":
                direct[name].add(word)

    def closure(name):
        return {name}.union(*(closure(dep) for dep in direct.get(name, ())))

    return {name: closure(name) for name in direct}


def check(tree):
    libraries = declared(tree)
    unknown = set()
    for path in tree.paths:
        if not path.endswith((".cpp", ".h", ".hpp", ".c")):
            continue
        parts = path.split("/")
        library = parts[1] if parts[0] == "src" and len(parts) > 2 else None
        judge = path.startswith(JUDGES)
        if library is None and not judge:
            continue
        if library and library not in libraries:
            if library not in unknown:
                unknown.add(library)
                yield Finding(path, 1, f"src/{library} is not declared in src/CMakeLists.txt")
            continue
        for number, line in tree.lines(path):
            match = INCLUDE.match(line)
            if not match:
                continue
            header, top = match[2], match[2].split("/")[0]
            if ".." in header.split("/"):
                yield Finding(path, number, f'"{header}": write includes from src/')
            elif judge:
                if top in JUDGED and "/" in header:
                    yield Finding(path, number, f"{header}: what judges the agent shares no code with it")
            elif match[1] == '"' and top in libraries and "/" in header and top not in libraries[library]:
                allowed = ", ".join(sorted(libraries[library] - {library})) or "nothing"
                yield Finding(path, number, f"{library} may not include {header} (it may use: {allowed})")
            elif header.startswith("sluice/bpf/"):
                yield Finding(path, number, f"{header} is for BPF code; share types through sluice/abi")
            else:
                for pattern, owners in WRAPPED:
                    if pattern.search(header) and library not in owners:
                        yield Finding(path, number, f"<{header}> is only for {', '.join(sorted(owners))}")
                if path.startswith(PURE) and IMPURE.match(header):
                    yield Finding(path, number, f"<{header}>: {path.rsplit('/', 1)[0]} is pure (no I/O, no clock, no threads)")
