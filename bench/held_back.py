"""A program that delays the packets of a TUN device: ``python -m routekeeper.bench.held_back``.

It runs in a network namespace whose routes send packets into the device. The program drops a share of these
packets, and writes the remaining packets into the device again after the delay. The namespace's rules then
send them to the namespace's interface. The program needs root. It waits by ``select``, because Python's
``epoll`` and ``poll`` round to whole milliseconds.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import select
import struct
import time
from collections import deque
from typing import Final

#: Largest number of packets that wait for the end of their delay. The program drops further packets, as a
#: router with a full queue does.
HELD_MAX: Final = 10_000
_PACKET_MAX: Final = 65_536
#: Request TUNSETIFF of ioctl, and the flags IFF_TUN and IFF_NO_PI. Source: linux/if_tun.h.
_SET_INTERFACE: Final = 0x400454CA
_TUN_WITHOUT_HEADER: Final = 0x1001


def open_device(name: str) -> int:
    """Create a TUN device and return its file descriptor. The kernel removes the device on close."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
    return device


def hold_back(device: int, *, delay_s: float, loss: float, chance: random.Random) -> None:
    """Forward packets in order, each after ``delay_s``. Drop a random share ``loss`` of the packets."""
    held: deque[tuple[float, bytes]] = deque()
    while True:
        left_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        ready, _, _ = select.select([device], [], [], left_s)
        now_s = time.monotonic()
        if ready:
            packet = os.read(device, _PACKET_MAX)
            if len(held) < HELD_MAX and chance.random() >= loss:
                held.append((now_s + delay_s, packet))
        while held and held[0][0] <= now_s:
            try:
                os.write(device, held.popleft()[1])
            except BlockingIOError:
                pass  # the kernel's queue is full, so drop the packet, as a router does


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m routekeeper.bench.held_back", description=__doc__)
    parser.add_argument("device", help="name of the device that is made")
    parser.add_argument("--delay-ms", type=float, required=True)
    parser.add_argument("--loss", type=float, required=True, help="share of packets that are lost, 0 to 1")
    parser.add_argument("--seed", type=int, required=True)
    found = parser.parse_args()
    device = open_device(found.device)
    print(f"{found.device} ready", flush=True)
    hold_back(device, delay_s=found.delay_ms / 1e3, loss=found.loss, chance=random.Random(found.seed))


if __name__ == "__main__":
    main()
