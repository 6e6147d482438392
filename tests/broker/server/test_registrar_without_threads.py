"""A broker with many topics registers although the system can start no thread for the encoding."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from routekeeper.broker.server import registrar
from routekeeper.broker.server.registrar import Registrar
from routekeeper.remoting.codes import VERSION, RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.registration import read_any_json
from routekeeper.remoting.route import TopicConfig
from routekeeper.remoting.transport.aio import RemotingClient
from tests.broker.states import NOW, state_in
from tests.waiting import until


def test_registration_with_many_topics_needs_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = state_in(tmp_path, TopicConfig(topic_name="T"))
    for number in range(registrar._INLINE_TOPICS_MAX):
        state.topics.put(TopicConfig(topic_name=f"T{number}"), now_ms=NOW)
    state.config = replace(state.config, namesrv_addr="192.0.2.1:9876")
    sent: list[RemotingCommand] = []
    refused: list[str] = []

    async def invoke(
        client: RemotingClient, addr: str, request: RemotingCommand, **_: Any
    ) -> RemotingCommand:
        sent.append(request)
        return request.reply()

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if not thread.name.startswith("registration"):
            start(thread)
            return
        refused.append(thread.name)
        raise RuntimeError("can't start new thread")

    async def register() -> None:
        announcer = Registrar(
            state, broker_addr="192.0.2.2:10911", ha_addr="192.0.2.2:10912", changed=lambda: None
        )
        running = asyncio.create_task(announcer.run())
        await until(lambda: sent or running.done(), "a request is sent")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await announcer.close()

    monkeypatch.setattr(RemotingClient, "invoke", invoke)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            asyncio.run(register())
    finally:
        state.store.log.close()
    assert refused, "the registration is large enough for a thread"
    (request,) = sent
    assert request.code == RequestCode.REGISTER_BROKER
    topics = read_any_json(request.body, version=VERSION).topics
    assert set(topics) == {config.topic_name for config in state.topics}
