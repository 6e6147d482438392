"""Fixture that runs tests of the transport on both kinds of event loop."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from tests.remoting.loops import Body, Run


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a test's body on an event loop.

    Each test runs twice: on uvloop and on asyncio.

    The reason is that the two loops read and write different numbers of bytes at once.
    """

    def on_loop(body: Body) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(body())

    return on_loop
