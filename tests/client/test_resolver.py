"""If a name resolver hangs, it delays a call only until the call's timeout."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from routekeeper.client.fetch import http_fetch
from routekeeper.client.mqadmin import targets
from routekeeper.client.mqadmin.targets import found_at
from routekeeper.client.operation import Fetch, Unreached
from tests.waiting import in_thread

T = TypeVar("T")


class Resolver:
    """A name resolver for tests: look-ups of names below ``.example`` hang until ``let_go`` is set."""

    def __init__(self, known: Callable[..., Any]) -> None:
        self._known = known
        self.let_go = threading.Event()

    def __call__(self, host: Any, *rest: Any, **more: Any) -> Any:
        if isinstance(host, str) and host.endswith(".example"):
            if more.get("flags", 0) & socket.AI_NUMERICHOST:
                raise socket.gaierror(socket.EAI_NONAME, "no address")
            self.let_go.wait(60)
            host = "127.0.0.1"
        return self._known(host, *rest, **more)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    hanging = Resolver(socket.getaddrinfo)
    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    targets._resolved.cache_clear()
    yield hanging
    hanging.let_go.set()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_request_over_http_ends_in_time_although_the_resolver_hangs(
    scheme: str, resolver: Resolver
) -> None:
    fetch = Fetch(f"{scheme}://ns1.example:9880/readyz", 0.2)
    error = in_thread(lambda: http_fetch(fetch)).exception(timeout=10)
    assert isinstance(error, Unreached), "nothing was sent"
    assert "ns1.example was not resolved within" in str(error)


def test_a_broker_is_looked_for_in_time_although_the_resolver_hangs(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "RESOLVE_S", 0.2)
    known = {"a": "broker-a.example:10911", "b": "127.0.0.1:10911"}
    assert in_thread(lambda: found_at(known, "broker-b.example:10911")).result(timeout=10) == []


def test_hung_resolutions_are_bounded_and_what_needs_none_goes_on(
    resolver: Resolver, http_page: Callable[[str], str]
) -> None:
    before = threading.active_count()
    fetch = Fetch("http://ns1.example:9880/readyz", 0.2)
    asked = [in_thread(lambda: http_fetch(fetch)) for _ in range(30)]
    assert {type(each.exception(timeout=20)) for each in asked} == {Unreached}
    assert threading.active_count() - before <= 12
    page = http_page("here")
    assert http_fetch(Fetch(page, 10.0)).text == "here"
    resolver.let_go.set()
    again = page.replace("127.0.0.1", "ns1.example")
    deadline_s = time.monotonic() + 10
    while True:
        try:
            assert http_fetch(Fetch(again, 5.0)).text == "here"
            break
        except Unreached:
            assert time.monotonic() < deadline_s
