#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""One connection full of data, whose congestion control is set by hand (TCP_CONGESTION), as an application may.

    bulk.py serve PORT [CCA]                 a listener with that CCA: sends for ever to those who ask for it, and reads from others
    bulk.py send|get ADDRESS PORT [CCA...]   connects with the first CCA and sends, or gets, for ever; SIGUSR1: the next CCA

What has not arrived when the process ends is thrown away (RST), so that nothing of the connection stays.
"""

import signal
import socket
import struct
import sys
import threading

CHUNK = bytes(65536)
SO_MAX_PACING_RATE = 47
BYTES_PER_S_MAX = 4_000_000  # more than the line carries; where there is none, the processors are spared


def run(cca, sock):
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, cca.encode())


def prepare(sock):
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST at the end
    sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, BYTES_PER_S_MAX)


def send(sock):
    while True:
        sock.sendall(CHUNK)


def read(sock):
    while sock.recv(len(CHUNK)):
        pass


def answer(sock):
    try:
        (send if sock.recv(1) == b"g" else read)(sock)
    except OSError:
        pass  # the client is gone
    sock.close()


def serve(port, cca=None):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if cca:
        run(cca, listener)
    listener.bind(("", int(port)))
    listener.listen()
    while True:
        sock, _ = listener.accept()
        prepare(sock)
        threading.Thread(target=answer, args=(sock,), daemon=True).start()


def connect(what, address, port, *ccas):
    sock = socket.socket()
    prepare(sock)
    rest = iter(ccas)
    if ccas:
        run(next(rest), sock)
    signal.signal(signal.SIGUSR1, lambda *_: run(next(rest), sock))
    sock.connect((address, int(port)))
    sock.sendall(what[:1].encode())
    (send if what == "send" else read)(sock)


def main():
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    connect(*sys.argv[1:])


if __name__ == "__main__":
    main()
