"""Program that makes the pictures of the console for README and docs.

``python -m tests.pictures.console`` (``make pictures``) runs the program. A headless Chromium shows the pages
of real nameservers, which have different routes.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from playwright.sync_api import expect

from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.browser import WITHIN_MS, chromium, page_of
from tests.nameserver.http.consoles import Server, registered, servers
from tests.ports import free_addresses
from tests.waiting import WITHIN_S

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "console"
WIDTHS: Final = (360, 768, 1280, 1920)
#: For each picture: its name, the address of its page, and a text that the complete page has.
PAGES: Final = (
    ("cluster", "#/", "of 8 brokers are not the same"),
    ("topics", "#/topics?contains=order", "orders-created"),
    ("topic", "#/topics/orders-created", "The routes are not the same"),
    ("history", "#/history", "the broker's connection closed"),
)
#: Width of the pictures in the documents, in pixels.
SHOWN: Final = 1280


@contextlib.contextmanager
def drifted(folder: Path) -> Iterator[Server]:
    """Run three nameservers with different routes.

    The second nameserver lacks a broker. The third nameserver has an older registration of another broker.
    """
    https = free_addresses(3)
    found = [
        Server(folder / str(number), "--console-peers", ",".join(https), http=http)
        for number, http in enumerate(https)
    ]
    topics = ("orders-created", "orders-paid", "orders-shipped", "payments", "stock", "%RETRY%billing")
    with servers(*found), BlockingClient() as client, BlockingClient() as leaving:
        for number, server in enumerate(found):
            for index in range(8):
                if (number, index) == (1, 5):
                    continue
                name, slave = f"broker-{'abcdefgh'[index // 2 * 2]}", index % 2
                request = registered(
                    name,
                    *topics[: 6 - index // 2],
                    addr=f"10.0.{index // 2}.{10 + index}:10911",
                    counter=1 if (number, index) == (2, 2) else 2,
                    cluster="DefaultCluster",
                    broker_id=slave,
                    queues=4 if index // 2 == 1 and number == 2 else 8,
                )
                assert client.invoke(server.wire, request, timeout_s=WITHIN_S).code == 0
        order = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders-created", "value": "broker-a:8;broker-c:8"}
        assert client.invoke(found[0].wire, RemotingCommand.request(100, order)).code == 0
        request = registered("broker-z", "stock", addr="10.0.9.9:10911", cluster="DefaultCluster")
        assert leaving.invoke(found[1].wire, request).code == 0
        leaving.close()
        yield found[0]


def take(folder: Path, widths: tuple[int, ...], schemes: tuple[bool, ...]) -> None:
    """Write a picture of each page, for each width and each color scheme (False: light, True: dark).

    The file names of pictures for the documents contain neither width nor scheme.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, drifted(Path(data)) as server, chromium() as opened:
        for width in widths:
            for dark in schemes:
                with page_of(opened, width=width, height=800, dark=dark) as (page, _):
                    for name, address, ready in PAGES:
                        page.goto(f"http://{server.http}/{address}")
                        expect(page.get_by_text(ready).first).to_be_visible(timeout=WITHIN_MS)
                        expect(page.locator("#live")).to_have_text("live")
                        scheme = "dark" if dark else "light"
                        is_shown = (widths, schemes) == ((SHOWN,), (False,))
                        file = f"{name}.png" if is_shown else f"{name}-{width}-{scheme}.png"
                        page.screenshot(path=folder / file, full_page=not is_shown)


def main() -> None:
    parser = argparse.ArgumentParser(description="make pictures of the console")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to")
    parser.add_argument("--all", action="store_true", help="every width, light and dark, to look at")
    arguments = parser.parse_args()
    if arguments.all:
        take(arguments.out, WIDTHS, (False, True))
    else:
        take(arguments.out, (SHOWN,), (False,))


if __name__ == "__main__":
    main()
