"""The console's first screen loads its data and its modules at the same time.

The page loads the code of all other screens later.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.remoting.transport.blocking import BlockingClient
from tests.browser import chromium, page_of
from tests.nameserver.http.consoles import Server, registered, servers

pytestmark = pytest.mark.bench

DATA = ("/v1/console/cluster", "/v1/console/pulse")
OTHER_PARTS = ("/broker.js", "/history.js", "/topic.js", "/topics.js")


def test_first_screen_asks_for_data_and_modules_at_once_and_for_other_parts_later(tmp_path: Path) -> None:
    server = Server(tmp_path, "--console-peers", "off")
    with servers(server), BlockingClient() as client, chromium() as opened, page_of(opened) as (page, errors):
        assert client.invoke(server.wire, registered("broker-a", "T")).code == 0
        page.goto(f"http://{server.http}/")
        page.get_by_role("link", name="broker-a").wait_for()
        for part in OTHER_PARTS:
            page.wait_for_function(
                "part => performance.getEntriesByName(location.origin + part).length > 0", arg=part
            )
        times = page.evaluate(
            "() => performance.getEntriesByType('resource').map("
            "each => [new URL(each.name).pathname, each.startTime, each.responseEnd])"
        )
        # reversed(): if the page requests a path twice, the dict must keep the times of the first request
        begun = {path: start for path, start, _ in reversed(times)}
        ended = {path: end for path, _, end in reversed(times)}
        for path in DATA:
            assert begun[path] < ended["/app.js"], "the page itself asks for the data"
        for part in OTHER_PARTS:
            assert begun[part] > max(ended[path] for path in DATA), "nothing waits for another part"
        assert errors == []
