#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""ends.py EXPECTED < RECORDS: which congestion control both ends of each connection run, and whether it is what it should be.

RECORDS are the lines of tests/harness's `recorder`, an iterator that shares no code with the agent. EXPECTED is a JSON file:
    {"hosts": {HOST: {"region": R, "addresses": [...], "ids": [struct_ops id, ...]}}, "near": CCA}
Connections between regions must run a CCA of `ids` of their host, at each end, and never a native one; those within a region the
native CCA `near`; listeners a CCA of `ids`. Prints a table of the connections; exit status 1 if a socket differs, which is named.
"""

import collections
import json
import sys


def describe(record):
    if record is None:
        return "closed already"
    return f"{record['cca']} " + (f"(struct_ops {record['struct_ops_id']})" if record["struct_ops_id"] else "(native)")


def main():
    with open(sys.argv[1], encoding="ascii") as source:
        expected = json.load(source)
    hosts = expected["hosts"]
    host_of = {address: name for name, host in hosts.items() for address in host["addresses"]}

    sockets, wrong, judged = {}, [], collections.Counter()
    for record in map(json.loads, sys.stdin):
        if "cca" not in record:
            continue  # TIME_WAIT and requests: no congestion control any more, or not yet
        local, remote = host_of.get(record["local"]), host_of.get(record["remote"])
        if record["state"] == "LISTEN":
            judged["listeners"] += 1
            if record["struct_ops_id"] not in {id for host in hosts.values() for id in host["ids"]}:
                wrong.append(f"listener on port {record['local_port']}: {describe(record)}")
            continue
        if local is None or remote is None:
            wrong.append(f"{record['local']} - {record['remote']}: not an address of this network")
            continue
        sockets[(record["local"], record["local_port"], record["remote"], record["remote_port"])] = record
        if hosts[local]["region"] == hosts[remote]["region"]:
            judged["ends within a region"] += 1
            right = record["struct_ops_id"] == 0 and record["cca"] == expected["near"]
        else:
            judged["ends between regions"] += 1
            right = record["struct_ops_id"] in hosts[local]["ids"]
        if not right:
            wrong.append(f"{local} -> {remote}, {record['state']}, port {record['local_port']}: {describe(record)}")

    groups = collections.Counter()
    for (local, local_port, remote, remote_port), record in sockets.items():
        if local_port < remote_port:
            continue  # the end that listened: told with its client
        other = sockets.get((remote, remote_port, local, local_port))
        family = "IPv6" if ":" in local else "IPv4"
        groups[(f"{host_of[local]} -> {host_of[remote]}", family, remote_port, describe(record), describe(other))] += 1
    print(f"{'connections':<24}{'port':<7}{'client end':<35}server end")
    for (path, family, port, client, server), count in sorted(groups.items()):
        if server != "closed already":
            print(f"{count:>3}  {path} {family:<7}{port:<7}{client:<35}{server}")
    print("judged: " + ", ".join(f"{count} {what}" for what, count in sorted(judged.items())) + f"; wrong: {len(wrong)}")
    for line in wrong[:10]:
        print(line, file=sys.stderr)
    return 1 if wrong or not judged["ends between regions"] or not judged["ends within a region"] else 0


if __name__ == "__main__":
    sys.exit(main())
