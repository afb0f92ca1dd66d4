#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""wan.py NETNS NETNS RATE_MBIT DELAY_MS BUFFER_KB [MARK_KB]: a long line between two network namespaces (paths), until it is killed.

A TUN device `wan` in each namespace; what one sends the other receives, after a bottleneck of RATE_MBIT with a drop-tail buffer of
BUFFER_KB and DELAY_MS of propagation, each way. Where more than MARK_KB wait in it, IPv4 packets with ECT are marked CE. In user space,
because not every kernel has netem and RED.
"""

import collections
import ctypes
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
PACKET_BYTES_MAX = 65536
NOT_ECT, CE = 0, 3


def open_tun(netns):
    """A TUN device belongs to the namespace of the thread that makes it, wherever its descriptor goes."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(netns, "rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns", netns)
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"wan", IFF_TUN | IFF_NO_PI))
    return tun


def marked(packet):
    """The packet with CE, if it is of IPv4 and carries ECT."""
    ecn = packet[1] & CE
    if packet[0] >> 4 != 4 or ecn == NOT_ECT:
        return packet
    total = 0xFFFF - int.from_bytes(packet[10:12], "big") + CE - ecn  # of the header; RFC 1624
    checksum = 0xFFFF - ((total & 0xFFFF) + (total >> 16))
    return packet[:1] + bytes([packet[1] | CE]) + packet[2:10] + checksum.to_bytes(2, "big") + packet[12:]


class Line:
    """One direction. `free_at` is when the bottleneck has sent everything that waits for it."""

    def __init__(self, source, sink, rate, delay, buffer, mark):
        self.source, self.sink, self.rate, self.delay, self.buffer, self.mark = source, sink, rate, delay, buffer, mark
        self.free_at = 0.0
        self.flying = collections.deque()  # (arrival, packet), in order

    def take(self):
        while True:
            try:
                packet = os.read(self.source, PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            now = time.monotonic()
            start = max(now, self.free_at)
            waiting = (start - now) * self.rate
            if waiting > self.buffer:
                continue  # drop-tail
            if waiting > self.mark:
                packet = marked(packet)
            self.free_at = start + len(packet) / self.rate
            self.flying.append((self.free_at + self.delay, packet))

    def deliver(self):
        now = time.monotonic()
        while self.flying and self.flying[0][0] <= now:
            try:
                os.write(self.sink, self.flying.popleft()[1])
            except OSError:
                pass  # the device at the far end is down, or has no memory: as on a wire, the packet is lost


def main():
    left, right = open_tun(sys.argv[1]), open_tun(sys.argv[2])
    rate, delay, buffer = float(sys.argv[3]) * 125e3, float(sys.argv[4]) / 1e3, float(sys.argv[5]) * 1e3
    mark = float(sys.argv[6]) * 1e3 if len(sys.argv) > 6 else buffer
    lines = [Line(left, right, rate, delay, buffer, mark), Line(right, left, rate, delay, buffer, mark)]
    while True:
        due = [line.flying[0][0] for line in lines if line.flying]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        readable, _, _ = select.select([left, right], [], [], timeout)
        for line in lines:
            if line.source in readable:
                line.take()
            line.deliver()


if __name__ == "__main__":
    main()
