"""A program that sends the same requests over many connections again and again, until it is killed."""

from __future__ import annotations

import json
import selectors
import socket
import sys
from pathlib import Path


def main() -> None:
    host, port, count, plan = sys.argv[1:]
    frames = [bytes.fromhex(digits) for digits in json.loads(Path(plan).read_text())]
    selector = selectors.DefaultSelector()
    turn = 0

    def connect() -> None:
        link = socket.create_connection((host, int(port)), timeout=30)
        link.setblocking(False)
        selector.register(link, selectors.EVENT_READ | selectors.EVENT_WRITE, bytearray())

    for _ in range(int(count)):
        connect()
    print("connected", flush=True)
    while True:
        for key, events in selector.select():
            link, unsent = key.fileobj, key.data
            assert isinstance(link, socket.socket)
            try:
                if events & selectors.EVENT_READ and not link.recv(1 << 20):
                    raise ConnectionError
                if events & selectors.EVENT_WRITE:
                    if not unsent:
                        unsent += frames[turn % len(frames)]
                        turn += 1
                    del unsent[: link.send(unsent)]
            except BlockingIOError:
                continue
            except ConnectionError:
                selector.unregister(link)
                link.close()
                connect()


if __name__ == "__main__":
    main()
