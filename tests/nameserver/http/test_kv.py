"""Tests of KV values over HTTP, in independent mode and in raft mode.

The tests make changes with the server's token, and changes that apply only to a certain entity tag.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from routekeeper.nameserver.commands import Command
from routekeeper.nameserver.http import kv
from routekeeper.nameserver.modes import independent, kept_file
from routekeeper.nameserver.modes.interface import Freshness, NoQuorum, OutcomeUnknown
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.routes.kv import KV_BYTES_MAX, KV_ENTRY_BYTES_MAX
from routekeeper.nameserver.settings.files import load_kv_file, save_kv_file
from routekeeper.nameserver.types import ConnectionId, Request
from routekeeper.nameserver.verdicts import Verdict
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.steps import Steps
from tests.nameserver.http.test_admin import TOKEN, Node, group_of, leader, node
from tests.ports import free_addresses
from tests.waiting import until

PATH = "/v1/kv/n/k"


@contextlib.asynccontextmanager
async def serving(root: Path, mode: str, **settings: str) -> AsyncIterator[Node]:
    """Run one nameserver in the given mode; yield it after it accepts changes."""
    peers = tuple(free_addresses(1)) if mode == "raft" else ()
    async with node(root, peers[0] if peers else "", peers, **settings) as one:
        await until(lambda: one.mode.status().writes_ready)
        yield one


async def ask(
    one: Node, method: str, path: str = PATH, value: object = None, *, token: str = TOKEN, **headers: str
) -> tuple[int, str, Any]:
    """Send a request; return status, entity tag and body."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    if token:
        named["Authorization"] = f"Bearer {token}"
    raw = value if isinstance(value, bytes) else json.dumps({"value": value}).encode()
    data = None if value is None else io.BytesIO(raw)
    async with one.web.request(method, f"http://{one.addr}{path}", data=data, headers=named) as answer:
        body = await answer.read()
        return answer.status, answer.headers.get("ETag", ""), json.loads(body) if body else None


BOTH = pytest.mark.parametrize("mode", ["independent", "raft"])


@BOTH
async def test_value_is_put_read_changed_and_deleted(mode: str, tmp_path: Path) -> None:
    async with serving(tmp_path, mode) as one:
        assert (await ask(one, "GET"))[0] == 404
        status, tag, body = await ask(one, "PUT", value="ä")
        assert (status, body["value"], body["mode"]) == (200, "ä", mode)
        assert (await ask(one, "GET"))[:2] == (200, tag)
        assert (await ask(one, "GET", If_None_Match=tag))[0] == 304
        status, same, _ = await ask(one, "PUT", value="ä")
        assert (status, same) == (200, tag), "the same value is no change"
        _, other, _ = await ask(one, "PUT", value="b")
        assert other != tag
        assert (await ask(one, "GET", "/v1/kv/n"))[2]["table"] == {"k": "b"}
        status, _, body = await ask(one, "DELETE")
        assert (status, body) == (200, {"namespace": "n", "key": "k"})
        assert (await ask(one, "DELETE"))[0] == 404
        assert (await ask(one, "PUT", "/v1/kv/a%2Fb/%C3%A9", "v"))[0] == 200
        assert (await ask(one, "GET", "/v1/kv/a%2Fb"))[2]["table"] == {"é": "v"}
    if mode == "independent":
        assert load_kv_file(tmp_path / "kvConfig.json") == {"n": {}, "a/b": {"é": "v"}}


@BOTH
async def test_change_with_if_match_changes_what_its_sender_saw_and_nothing_else(
    mode: str, tmp_path: Path
) -> None:
    async with serving(tmp_path, mode) as one:
        assert (await ask(one, "PUT", value="v", If_Match="*"))[0] == 412, "there is none yet"
        status, first, _ = await ask(one, "PUT", value="1", If_None_Match="*")
        assert status == 200
        status, _, problem = await ask(one, "PUT", value="x", If_None_Match="*")
        assert (status, first in problem["detail"]) == (412, True)
        status, second, _ = await ask(one, "PUT", value="2", If_Match=first)
        assert status == 200
        for stale in (first, f"W/{second}", '"nonsense"', "nonsense"):
            status, _, problem = await ask(one, "PUT", value="lost", If_Match=stale)
            assert (status, second in problem["detail"]) == (412, True)
            assert (await ask(one, "DELETE", If_Match=stale))[0] == 412
        assert (await ask(one, "GET"))[2]["value"] == "2"
        assert (await ask(one, "DELETE", If_Match=f"{first}, {second}"))[0] == 200
        assert (await ask(one, "DELETE", If_Match=second))[0] == 412


@BOTH
@pytest.mark.slow
async def test_of_changes_at_once_on_one_condition_one_is_applied(mode: str, tmp_path: Path) -> None:
    async with serving(tmp_path, mode) as one:
        _, tag, _ = await ask(one, "PUT", value="0")
        for number in range(3):
            asked = [ask(one, "PUT", value=f"{number}-{by}", If_Match=tag) for by in range(8)]
            answers = await asyncio.gather(*asked)
            assert sorted(status for status, _, _ in answers) == [200] + [412] * 7
            (tag,) = [tag for status, tag, _ in answers if status == 200]
            assert (await ask(one, "GET"))[1] == tag


async def test_answer_to_a_put_that_waits_for_the_file_names_its_own_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that sends a version of another client in If-Match would overwrite that client's value."""
    disk_works, writes = threading.Event(), threading.Event()

    def save(path: Path, table: Any) -> None:
        writes.set()
        assert disk_works.wait(30)
        save_kv_file(path, table)

    monkeypatch.setattr(independent, "save_kv_file", save)
    async with serving(tmp_path, "independent") as one:
        put = asyncio.create_task(ask(one, "PUT", value="A", If_None_Match="*"))
        await until(writes.is_set)
        _, tag, body = await ask(one, "GET")
        other = asyncio.create_task(ask(one, "PUT", value="B", If_Match=tag))
        await until(lambda: (entry := value_at(one)) is not None and entry != "A")
        disk_works.set()
        status, own, answered = await put
        assert (status, answered["value"], answered["index"], own) == (200, "A", body["index"], tag)
        assert (await other)[0] == 200
        assert (await ask(one, "PUT", value="lost", If_Match=own))[0] == 412
        assert (await ask(one, "GET"))[2]["value"] == "B"


async def test_a_value_that_was_overwritten_before_its_file_failed_was_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk_fails, writes = threading.Event(), threading.Event()

    def save(path: Path, table: Any) -> None:
        writes.set()
        assert disk_fails.wait(30)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(independent, "save_kv_file", save)
    async with serving(tmp_path, "independent") as one:
        put = asyncio.create_task(ask(one, "PUT", value="A"))
        await until(writes.is_set)
        other = asyncio.create_task(ask(one, "PUT", value="B"))
        await until(lambda: value_at(one) == "B")
        disk_fails.set()
        assert [status for status, _, _ in (await put, await other)] == [507, 507]


def value_at(one: Node) -> str | None:
    entry = one.mode.view(Freshness.STALE).kv_value("n", "k")
    return None if entry is None else entry.value


@BOTH
@pytest.mark.parametrize("first", ["new value", "same value"])
@pytest.mark.parametrize("then", ["PUT", "DELETE"])
async def test_put_is_answered_as_it_was_applied_although_another_change_follows_at_once(
    mode: str, first: str, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member may apply several changes of the log before the task of the first change goes on."""
    async with serving(tmp_path, mode) as one:
        tag = (await ask(one, "PUT", value="A"))[1] if first == "same value" else ""
        propose = one.mode.propose

        async def followed(command: Command, *, deadline: float) -> Verdict:
            verdict = await propose(command, deadline=deadline)
            monkeypatch.setattr(one.mode, "propose", propose)
            code = RequestCode.PUT_KV_CONFIG if then == "PUT" else RequestCode.DELETE_KV_CONFIG
            request = Request(code=code, ext_fields={"namespace": "n", "key": "k", "value": "B"})
            assert (await one.mode.execute(request, ConnectionId(1), deadline=deadline)).code == 0
            return verdict

        monkeypatch.setattr(one.mode, "propose", followed)
        status, own, body = await ask(one, "PUT", value="A")
        assert (status, body["value"]) == (200, "A")
        assert own.endswith(f'-{body["index"]}"')
        assert not tag or own == tag
        assert value_at(one) == ("B" if then == "PUT" else None)
        assert (await ask(one, "PUT", value="lost", If_Match=own))[0] == 412


@pytest.mark.slow
async def test_delete_at_a_member_that_lags_removes_a_key_that_another_member_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, 3) as nodes:
        first = leader(nodes)
        lagging = next(one for one in nodes if one is not first)
        assert isinstance(lagging.mode, Replicated)
        apply, lags = lagging.mode.apply, True

        def apply_later(payload: bytes, *, index: int, term: int, live: bool) -> Steps[None]:
            while lags:
                yield
            yield from apply(payload, index=index, term=term, live=live)

        monkeypatch.setattr(lagging.mode, "apply", apply_later)
        assert (await ask(first, "PUT", value="v"))[0] == 200
        assert value_at(lagging) is None
        deleted = asyncio.create_task(ask(lagging, "DELETE"))
        await asyncio.wait({deleted}, timeout=0.1)
        lags = False
        assert (await deleted)[0] == 200
        assert (await ask(first, "GET", f"{PATH}?consistency=linearizable"))[0] == 404
        assert (await ask(lagging, "DELETE"))[0] == 404


async def test_change_needs_the_token(tmp_path: Path) -> None:
    async with serving(tmp_path / "1", "independent") as one:
        assert (await ask(one, "PUT", value="v", token=""))[0] == 401
        assert (await ask(one, "PUT", value="v", token="wrong"))[0] == 401
        assert (await ask(one, "DELETE", token="wrong"))[0] == 401
        assert (await ask(one, "GET"))[0] == 404, "nothing was put"
    async with serving(tmp_path / "2", "independent", token="") as one:
        assert (await ask(one, "PUT", value="v"))[0] == 403


WRONG: tuple[tuple[str, object, int, str], ...] = (
    (PATH, b"", 400, "the body must be"),
    (PATH, b"[" * 100_000, 400, "the body must be"),
    (PATH, b'{"value": 1}', 400, "the body must be"),
    (PATH, b'{"value": null}', 400, "the body must be"),
    (PATH, b'{"value": "v", "more": 1}', 400, "the body must be"),
    (PATH, b'{"value": "\xff"}', 400, "the body must be"),
    (PATH, b'{"value": "\\ud800"}', 400, "the body must be"),
    (f"{PATH}?timeout=0s", "v", 400, "timeout=0s is not"),
    (f"{PATH}?force=1", "v", 400, "unknown parameter force"),
    (PATH, "x" * KV_ENTRY_BYTES_MAX, 400, f"at most {KV_ENTRY_BYTES_MAX} are allowed"),
    (PATH, b" " * (kv.BODY_MAX + 1), 413, f"a body of at most {kv.BODY_MAX} bytes"),
    (f"/v1/kv/n/{'k' * 2000}", "v", 400, "namespace and key have 2001 bytes"),
)


async def test_wrong_change_is_refused_and_says_why(tmp_path: Path) -> None:
    async with serving(tmp_path, "independent") as one:
        for path, value, status, said in WRONG:
            answered, _, problem = await ask(one, "PUT", path, value)
            assert (answered, said in problem["detail"]) == (status, True), problem
            assert len(problem["detail"]) <= 400
        assert (await ask(one, "GET", "/v1/kv"))[2]["namespaces"] == []


async def test_configuration_that_is_full_refuses_a_put(tmp_path: Path) -> None:
    async with serving(tmp_path, "independent") as one:
        for number in range(KV_BYTES_MAX // 1_000_000):
            assert (await ask(one, "PUT", f"/v1/kv/n/k{number}", "x" * 1_000_000))[0] == 200
        status, _, problem = await ask(one, "PUT", "/v1/kv/n/more", "x" * 1_000_000)
        assert (status, "at most" in problem["detail"]) == (409, True)


async def test_put_that_the_disk_refuses_is_in_force_and_says_that_it_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_file, "RETRY_S", 0.02)
    async with serving(tmp_path, "independent") as one:
        (tmp_path / "kvConfig.json.tmp").mkdir()
        status, _, problem = await ask(one, "PUT", value="v")
        assert (status, "in force, but not kept in a file" in problem["detail"]) == (507, True)
        assert (await ask(one, "GET"))[2]["value"] == "v"
        (tmp_path / "kvConfig.json.tmp").rmdir()
        status, _, _ = await ask(one, "PUT", value="v")
        assert status == 200


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (NoQuorum("name server not ready: no leader"), 503, "nothing was changed"),
        (OutcomeUnknown("no verdict by the deadline"), 504, "outcome unknown"),
    ],
)
async def test_outcomes_of_a_group_are_told_apart(
    error: Exception, status: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise error

    async with serving(tmp_path, "independent") as one:
        monkeypatch.setattr(one.mode, "propose", fail)
        answered, _, problem = await ask(one, "PUT", value="v")
        assert (answered, said in problem["detail"]) == (status, True)
