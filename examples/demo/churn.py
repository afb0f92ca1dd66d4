#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Short connections over HTTP, each with its congestion control as the kernel tells both ends (TCP_CONGESTION).

    churn.py serve PORT              answers every GET with the CCA of the connection the request came over
    churn.py get FILE WORKERS URL... opens connections to the URLs for ever, WORKERS at a time, and keeps count in FILE:
                                     {"opened": N, "failed": N, "error": LAST, "oldest": WHEN, "ends": {URL: {"client": {CCA: N}, "server": {CCA: N}}}}
                                     `oldest`: when the oldest connection that is not counted yet was begun, in seconds since the epoch

Every request is a connection of its own (HTTP/1.0). FILE is replaced as a whole, so a reader never sees half of it.
"""

import collections
import http.client
import http.server
import itertools
import json
import os
import socket
import sys
import threading
import time
import urllib.parse

TIMEOUT_S = 30
REPORT_EVERY_S = 0.1


def cca_of(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0].decode()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = cca_of(self.connection).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
    request_queue_size = 128

    def server_bind(self):
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class Counts:
    def __init__(self, path):
        self.path, self.lock, self.written = path, threading.Lock(), 0.0
        self.opened = self.failed = 0
        self.error = ""
        self.begun = {}  # worker -> when
        self.ends = collections.defaultdict(lambda: {"client": collections.Counter(), "server": collections.Counter()})

    def begin(self):
        with self.lock:
            self.begun[threading.get_ident()] = time.time()

    def add(self, url, client, server):
        with self.lock:
            self.opened += 1
            self.ends[url]["client"][client] += 1
            self.ends[url]["server"][server] += 1
            self.end()

    def fail(self, url, error):
        with self.lock:
            self.failed += 1
            self.error = f"{url}: {error}"
            self.end()

    def end(self):
        del self.begun[threading.get_ident()]
        if time.monotonic() - self.written < REPORT_EVERY_S:
            return
        with open(self.path + ".new", "w", encoding="ascii") as out:
            oldest = min(self.begun.values(), default=time.time())
            json.dump({"opened": self.opened, "failed": self.failed, "error": self.error, "oldest": oldest, "ends": self.ends}, out)
        os.replace(self.path + ".new", self.path)
        self.written = time.monotonic()


def get(counts, urls):
    for url in urls:
        target = urllib.parse.urlsplit(url)
        connection = http.client.HTTPConnection(target.hostname, target.port, timeout=TIMEOUT_S)
        counts.begin()
        try:
            connection.connect()
            client = cca_of(connection.sock)
            connection.request("GET", "/")
            counts.add(url, client, connection.getresponse().read().decode())
        except (OSError, http.client.HTTPException) as error:
            counts.fail(url, error)
        finally:
            connection.close()


def main():
    if sys.argv[1] == "serve":
        Server(("::", int(sys.argv[2])), Handler).serve_forever()
    counts, workers, urls = Counts(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    for _ in range(workers):
        threading.Thread(target=get, args=(counts, itertools.cycle(urls))).start()


if __name__ == "__main__":
    main()
