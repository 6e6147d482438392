"""Every answer over HTTP and every metric must equal its record in the folder ``golden/``, in both modes.

Each file there has the requests of one session in order, each with status, headers and body of its answer.
Values that differ between runs (times, ports, folders, random numbers) are masked. To accept an intended
change, record all files again with ``python -m tests.nameserver.http.test_golden`` and review the difference.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

import aiohttp
import msgspec
import pytest
from yarl import URL

from routekeeper.nameserver.http import openapi
from routekeeper.nameserver.http.app import HttpServer
from routekeeper.nameserver.http.metrics import raft_families
from routekeeper.nameserver.modes.group import GroupStatus, Operations
from routekeeper.nameserver.modes.independent import Independent
from routekeeper.nameserver.replicated import Replicated
from routekeeper.nameserver.settings.changes import LiveSettings
from routekeeper.nameserver.settings.ranking import load_settings
from routekeeper.nameserver.wire.server import NameServer
from routekeeper.remoting.codes import RequestCode
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import RegisterBrokerFields
from routekeeper.remoting.registration import RegisterBody, body_crc32, encode_register_body
from routekeeper.remoting.route import DataVersion, TopicConfig
from routekeeper.remoting.transport import split_address
from routekeeper.remoting.transport.aio import RemotingClient
from tests.nameserver.http.test_metrics import text_of
from tests.ports import free_addresses
from tests.waiting import until

GOLDEN: Final = Path(__file__).with_name("golden")
TOKEN: Final = "a-token-of-the-operators"
SECRET: Final = "a secret that all members of the group share"
CONDITION_S: Final = 60.0
BINARY: Final = "application/octet-stream"
STATIC_TOPIC: Final = {"bname": "b", "currIdMap": {"0": 0}, "epoch": 3, "topic": "static", "totalQueues": 1}

#: Headers that every answer should have. A record mentions such a header only if an answer lacks it.
USUAL: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Server": "mqnamesrv",
}
UNTOLD: Final = frozenset({"Date", "Content-Length", "Transfer-Encoding"})

#: Members of JSON bodies with numbers that differ from run to run.
VOLATILE: Final = re.compile(
    r'"(uptime_ms|at_ms|last_contact_ms|snapshot_age_s|journal_bytes|log_bytes|term|elections|leader_changes'
    r"|commit_index|applied_index|last_index|last_term|durable_index|configuration_index|snapshot_index|barrier_rounds|last_seen_ms"
    r'|barriers_confirmed|barriers|storage_stalls|refused_writes|refused_reads|apply_lag|size|snapshot_bytes)":'
    r"[0-9.e+-]+"
)
#: The index of a log entry in a JSON member "index". It differs from run to run.
VOLATILE_INDEX: Final = re.compile(r'(?<="index":)\d+(?=,"term"|\}$)')
#: The number in the path of a snapshot, and the random id of a cluster (32 hex digits).
VOLATILE_NAME: Final = re.compile(r'(?<=/snapshot-)\d+|(?<="cluster":")[0-9a-f]{32}')
#: The first number of an entity tag. It differs from run to run.
VOLATILE_TAG: Final = re.compile(r'(?<=Etag: ")\d+|(?<=Etag: W/")\d+')
#: Metrics whose values differ from run to run.
VOLATILE_METRICS: Final = re.compile(
    r"(process_|mqnamesrv_http_request_seconds_(bucket|sum)|mqnamesrv_connections|mqnamesrv_request_seconds"
    r"|mqnamesrv_loop_late|mqnamesrv_answers|mqnamesrv_broker_last_seen|mqnamesrv_raft_(commit|fsync|apply)_s"
    r"|mqnamesrv_route_cache_bytes|mqnamesrv_raft_(last_contact|snapshot_age|apply_lag|leader_changes|elections"
    r"|storage_stalls|journal_bytes|log_bytes|snapshot_bytes|term|barrier|refused|\w+_(index|term)))"
)
#: Histogram buckets that a record leaves out to stay short. So a record has the buckets of only one path, one
#: group of requests and one step of a change in raft mode.
ALIKE: Final = re.compile(
    r'mqnamesrv_http_request_seconds_bucket\{.*path="(?!/healthz")|mqnamesrv_raft_(fsync|apply)_seconds_bucket'
    r'|mqnamesrv_loop_late_seconds_bucket|mqnamesrv_request_seconds_bucket\{group="(?!route)'
)


@dataclass
class Session:
    """One nameserver, and the record of its answers."""

    mode: Replicated | Independent
    server: NameServer
    http: HttpServer
    wire: str
    addr: str
    raft: str
    client: RemotingClient
    web: aiohttp.ClientSession
    masks: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def mask(self, text: str) -> str:
        for found, shown in self.masks.items():
            text = text.replace(found, shown)
        return text

    async def ask(
        self,
        method: str,
        path: str,
        data: Any = None,
        *,
        token: str | None = TOKEN,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Send a request, record it with its answer, and return the answer's body."""
        given = dict(headers or {})
        if token is not None and method != "GET":
            given.setdefault("Authorization", f"Bearer {token}")
        said = "".join(f" {name}={value}" for name, value in given.items() if value != f"Bearer {TOKEN}")
        body = data if isinstance(data, bytes) and len(data) < 200 and data.isascii() else b""
        url = URL(f"http://{self.addr}{path}", encoded=True)
        async with self.web.request(method, url, data=data, headers=given) as answer:
            raw = await answer.read()
            self.lines += [
                "",
                self.mask(f"{method} {path}{said} {body.decode()}").rstrip(),
                str(answer.status),
            ]
            answered = answer.headers
            self.lines += [f"(without {name})" for name in USUAL if answered.get(name) != USUAL[name]]
            self.lines += sorted(
                self.mask(VOLATILE_TAG.sub("N", f"{name}: {value}") if self.raft else f"{name}: {value}")
                for name, value in answered.items()
                if name not in UNTOLD and USUAL.get(name) != value
            )
            if answer.content_type == BINARY:
                self.lines.append("(binary)")
            elif path == "/metrics":
                self.lines += [
                    self.metric(line) for line in raw.decode().splitlines() if not ALIKE.match(line)
                ]
            elif path == "/openapi.json":
                assert raw == openapi.document()
                self.lines += ["(openapi.json)"]
            elif path in ("/", "/style.css", "/app.js"):
                file = Path(openapi.__file__).with_name("web") / (path[1:] or "index.html")
                assert raw == file.read_bytes()
                self.lines += [f"({file.name})"]
            else:
                text = VOLATILE_NAME.sub("N", VOLATILE.sub(r'"\1":N', raw.decode()))
                if self.raft:
                    text = VOLATILE_INDEX.sub("N", text)
                self.lines += self.mask(text).splitlines()
            return raw

    def metric(self, line: str) -> str:
        if VOLATILE_METRICS.match(line):
            line = f"{line.rpartition(' ')[0]} N"
        return self.mask(line)

    async def say(self, code: int, body: bytes = b"", **ext: str) -> None:
        answer = await self.client.invoke(self.wire, RemotingCommand.request(code, ext, body))
        assert answer.code == 0, answer

    async def register(self, name: str, *topics: str, broker_id: int = 0, cluster: str = "C") -> None:
        body = encode_register_body(
            RegisterBody(
                data_version=DataVersion(timestamp=1, counter=2, state_version=0),
                topic_configs=tuple(TopicConfig(topic_name=topic) for topic in topics),
                filter_servers=("10.0.0.9:1",) if broker_id else None,
                mapping_infos={"static": STATIC_TOPIC} if "static" in topics else {},
            ),
            compressed=False,
            version=479,
        )
        fields = RegisterBrokerFields(
            broker_name=name,
            broker_addr=f"10.0.0.1:{1000 + broker_id if name == 'b' else 2000 + broker_id}",
            cluster_name=cluster,
            ha_server_addr=f"10.0.0.1:{3000 + broker_id}",
            broker_id=broker_id,
            body_crc32=body_crc32(body),
            heartbeat_timeout_ms=60_000,
            enable_acting_master=True,
            zone_name="z1" if name == "c" else None,
        )
        await self.say(RequestCode.REGISTER_BROKER, body, **fields.to_ext())

    async def ready(self) -> None:
        await until(lambda: self.mode.status().writes_ready and self.mode.status().reads_ready)


@contextlib.asynccontextmanager
async def session(
    root: Path, *peers: str, number: int = 0, token: str | None = TOKEN, **flags: str
) -> AsyncIterator[Session]:
    """Run one nameserver. With ``peers``, it runs in raft mode as the member ``peers[number]``.

    Args:
        token: The token that changes over HTTP need; if None, the nameserver refuses all changes over HTTP.
    """
    raft = peers[number] if peers else ""
    flags = {"dataDir": str(root), "httpListen": "127.0.0.1:0", "listenPort": "0"} | flags
    if peers:
        flags |= {"mode": "raft", "raftAddress": raft, "raftPeers": ",".join(peers)}
        flags |= {"raftElectionTimeoutMs": "2000"}
    live = LiveSettings(load_settings(flags=flags).settings)
    plain = aiohttp.ClientSession(skip_auto_headers=["Accept-Encoding"])
    async with asyncio.TaskGroup() as group, plain as web, RemotingClient() as client:
        server = NameServer(settings=live, group=group)
        mode: Replicated | Independent
        if peers:
            mode = Replicated(live, server, boot_id=number + 1)
            await mode.start()
        else:
            mode = Independent(live, server, boot_id=1)
            mode.start()
        http = HttpServer(consistency=mode, server=server, settings=live, version="test", token=token)
        wire = await server.start(mode)
        addr = await http.start(*split_address(flags["httpListen"]))
        made = Session(mode, server, http, wire, addr, raft, client, web)
        made.masks = {str(root): "DATA", addr: "HTTP", wire: "WIRE"} | ({raft: "RAFT"} if raft else {})
        try:
            yield made
        finally:
            await http.close()
            await server.close(drain_s=1.0)
            await mode.close()


READS: Final = (
    "/v1/topics",
    "/v1/topics?consistency=stale",
    "/v1/topics?consistency=linearizable",
    "/v1/topics?consistency=x",
    "/v1/topics?nonsense=1",
    "/v1/topics?index=1",
    "/v1/topics?prefix=s&limit=1",
    "/v1/topics?limit=2",
    "/v1/topics?cluster=D",
    "/v1/topics?cursor=x",
    "/v1/watch?kinds=x",
    "/v1/topics/T/route",
    "/v1/topics/T/route?index=0&wait=1s",
    "/v1/topics/T/route?index=999&wait=0s",
    "/v1/topics/T/route?index=999&epoch=7",
    "/v1/topics/T/route?index=x",
    "/v1/topics/T/route?wait=1s",
    "/v1/topics/T/route?epoch=1",
    "/v1/topics/T/route?index=1&wait=61s",
    "/v1/topics/static/route",
    "/v1/topics/deleted/route",
    "/v1/topics/never/route",
    "/v1/topics/T/explain",
    "/v1/topics/deleted/explain",
    "/v1/topics/wiped/explain",
    "/v1/topics/a%FFb/explain",
    "/v1/brokers",
    "/v1/clusters",
    "/v1/kv/N",
    "/v1/kv/never",
    "/v1/kv",
    "/v1/kv/N/k",
    "/v1/kv/N/never",
    "/v1/status",
    "/v1/status?x=1",
    "/v1/digest",
    "/v1/digest?x=1",
    "/v1/raft/status",
    "/v1/raft/status?x=1",
    "/v1/raft/members",
    "/v1/nothing",
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/",
    "/style.css",
    "/app.js",
)


async def ask_reads(of: Session) -> None:
    """Fill the table, read all resources, and cause errors. Both modes get the same requests."""
    await of.register("b", "T", "deleted", "static")
    await of.register("b", "T", "static", broker_id=1)
    await of.register("c", "wiped", cluster="D")
    await of.say(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="deleted")
    await of.say(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="c")
    await of.say(RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="é")
    for _ in range(3):
        await of.say(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
    for path in READS:
        await of.ask("GET", path)
    await of.ask("HEAD", "/v1/topics")
    await of.ask("POST", "/v1/topics", b"x")
    await of.ask("DELETE", "/v1/raft/status")
    await of.ask("GET", "/v1/topics", headers={"Host": "elsewhere.example"})
    await of.ask("GET", "/readyz", headers={"Host": "elsewhere.example"})
    with mock.patch.object(of.mode, "status", side_effect=RuntimeError("a defect")):
        await of.ask("GET", "/v1/status")
    await of.ask("GET", "/metrics")


CHANGES: Final = (
    ("POST", "/v1/raft/members", b'{"address": "127.0.0.1:1"}'),
    ("DELETE", "/v1/raft/members/127.0.0.1:1", None),
    ("POST", "/v1/raft/transfer", b"{}"),
    ("POST", "/v1/raft/snapshot", None),
    ("POST", "/v1/raft/restore", None),
    ("PUT", "/v1/kv/N/new", b'{"value": "v"}'),
    ("PUT", "/v1/kv/N/new", b'{"val": "v"}'),
    ("DELETE", "/v1/kv/N/new", None),
    ("DELETE", "/v1/kv/N/new", None),
)
UNREADABLE: Final = (
    ("/v1/raft/members", b"address=1"),
    ("/v1/raft/members", b'["127.0.0.1:1"]'),
    ("/v1/raft/members", b""),
    ("/v1/raft/members", b'{"adress": "127.0.0.1:1"}'),
    ("/v1/raft/members", b'{"address": 1}'),
    ("/v1/raft/members", b'{"address": "127.0.0.1"}'),
    ("/v1/raft/members", b'{"address": "127.0.0.1:0"}'),
    ("/v1/raft/members", b" " * 4097),
    ("/v1/raft/transfer", b'{"to": "nowhere"}'),
    ("/v1/raft/transfer?timeout=0s", b"{}"),
    ("/v1/raft/transfer?timeout=soon", b"{}"),
    ("/v1/raft/transfer?timeout=101s", b"{}"),
    ("/v1/raft/transfer?wait=1s", b"{}"),
    ("/v1/raft/snapshot", b'{"path": "/etc/passwd"}'),
    ("/v1/raft/restore", b""),
    ("/v1/raft/restore", b"no snapshot"),
)


async def independent(root: Path) -> str:
    async with session(root) as of:
        await ask_reads(of)
        for method, path, body in CHANGES:
            await of.ask(method, path, body)
        await of.web.close()
        connections = of.http._connections
        await until(lambda: not connections.open)
        with mock.patch.object(connections, "connections_max", 0):
            async with aiohttp.ClientSession(skip_auto_headers=["Accept-Encoding"]) as of.web:
                await of.ask("GET", "/v1/topics")
                await of.ask("GET", "/healthz")
        return "\n".join(of.lines)


async def raft_without_token(root: Path) -> str:
    """Record the answers of a member without a token, while it waits for the other members of its group.

    Without a token, a nameserver refuses all changes over HTTP.
    """
    peers = free_addresses(3)
    async with session(root, *peers, token=None) as of:
        of.masks |= {peers[1]: "OTHER1", peers[2]: "OTHER2"}
        for path in (
            "/readyz",
            "/v1/topics",
            "/v1/topics?consistency=stale",
            "/v1/status",
            "/v1/raft/status",
        ):
            await of.ask("GET", path)
        await of.ask("POST", "/v1/raft/transfer", b"{}")
        await of.ask("GET", "/metrics")
        return "\n".join(of.lines)


async def raft_of_one(root: Path) -> str:
    peers = free_addresses(1)
    async with session(root, *peers) as of:
        await of.ready()
        await ask_reads(of)
        for method, path, body in CHANGES:
            await of.ask(method, path, body, token=None)
            await of.ask(method, path, body, token="wrong")
        await of.ask("POST", "/v1/raft/transfer", headers={"Authorization": f"Basic {TOKEN}"})
        for path, body in UNREADABLE:
            await of.ask("POST", path, body)
        await of.ask("DELETE", "/v1/raft/members/nowhere")
        await of.ask("DELETE", "/v1/raft/members/127.0.0.1:1")
        await of.ask("POST", "/v1/raft/members", b'{"address": "%b"}' % of.raft.encode())
        await of.ask("POST", "/v1/raft/members?timeout=0.2s", b'{"address": "127.0.0.1:1"}')
        await until(lambda: "127.0.0.1:1" in of.mode.status().members)
        await of.ask("GET", "/v1/raft/status")
        await of.ask("GET", "/metrics")
        await of.ask("DELETE", "/v1/raft/members/127.0.0.1:1")
        await of.ask("POST", "/v1/raft/transfer", b"{}")
        await of.ask("POST", "/v1/raft/transfer", b'{"to": "127.0.0.1:1"}')
        await of.ask("POST", "/v1/raft/snapshot")
        image = await of.ask("POST", "/v1/raft/snapshot", headers={"Accept": BINARY})
        await restore_twice(of)
        await of.ask("POST", "/v1/raft/restore", image)
        await of.ask("GET", "/v1/topics/T/route")
        await of.ask("GET", "/v1/raft/status")
        return "\n".join(of.lines)


async def restore_twice(of: Session) -> None:
    """Request a second restore while the client still sends the body of the first restore."""
    over = asyncio.Event()

    async def never() -> AsyncIterator[bytes]:
        yield b"no "
        await over.wait()
        yield b"snapshot"

    first = asyncio.create_task(of.ask("POST", "/v1/raft/restore", never()))
    await until(lambda: of.http._admin._restoring.locked())
    await of.ask("POST", "/v1/raft/restore", b"x")
    over.set()
    await first


async def raft_of_two(root: Path) -> str:
    """Record the answers of a group of two members, whose first member is the leader.

    The members share a secret, because without a secret they would not exchange their HTTP addresses.
    """
    peers, webs = sorted(free_addresses(2)), free_addresses(2)
    secret = root / "secret"
    secret.touch(0o600)
    secret.write_text(SECRET)
    async with contextlib.AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(
                session(
                    root / str(number),
                    *peers,
                    number=number,
                    httpListen=webs[number],
                    raftSecretFile=str(secret),
                )
            )
            for number in range(2)
        ]
        first, second = both
        for of in both:
            await of.ready()
            await until(lambda of=of: len(group(of).raft_status().http or {}) == 2)  # type: ignore[misc]
        if first.mode.status().role != "leader":
            deadline = asyncio.get_running_loop().time() + CONDITION_S
            await group(second).member.changes.transfer_leadership(first.raft, deadline=deadline)
        first.masks = second.masks = {
            str(root): "DATA",
            peers[0]: "FIRST",
            peers[1]: "SECOND",
            webs[0]: "WEB1",
            webs[1]: "WEB2",
        }
        second.lines = first.lines
        for of in both:
            await of.ready()
            await of.ask("GET", "/v1/status")
            await of.ask("GET", "/v1/raft/status")
            await of.ask("GET", "/v1/topics?consistency=linearizable")
        for method, path, body in CHANGES:
            await second.ask(method, path, body)
        await second.ask("GET", "/metrics")
        await first.ask("POST", "/v1/raft/restore", b"x")
        await first.ask("POST", "/v1/raft/transfer", b'{"to": "%b"}' % second.raft.encode())
        return "\n".join(first.lines)


def group(of: Session) -> Operations:
    operations = of.mode.operations
    assert operations is not None
    return operations


async def figures(root: Path) -> str:
    """Give each number in a member's status a different value; record the metrics that show these values."""
    given: dict[str, Any] = {"role": "leader", "me": "a:1", "leader": "a:1", "storage_stalled": True}
    given |= {"members": ["a:1", "b:1", "c:1"], "learners": ["c:1"], "linked": ["b:1"]}
    numbers = (
        "term commit_index applied_index last_index durable_index last_contact_ms contact_limit_ms "
        "configuration_index journal_bytes log_bytes snapshot_index snapshot_bytes snapshot_failures "
        "storage_stalls leader_changes elections refused_truncations snapshot_age_s refused_reads "
        "refused_writes unknown_outcomes barriers barriers_confirmed barrier_rounds proposals apply_lag "
        "last_term"
    )
    given |= {name: 1000 + place for place, name in enumerate(numbers.split())}
    return text_of(raft_families(msgspec.convert(given, GroupStatus)))


async def document(root: Path) -> str:
    return json.dumps(json.loads(openapi.document()), indent=1, ensure_ascii=False)


RECORDS: Final[dict[str, Callable[[Path], Awaitable[str]]]] = {
    "independent.txt": independent,
    "raft-waiting.txt": raft_without_token,
    "raft-of-one.txt": raft_of_one,
    "raft-of-two.txt": raft_of_two,
    "figures.txt": figures,
    "openapi.json": document,
}


def recorded(name: str, root: Path) -> str:
    async def record() -> str:
        return await RECORDS[name](root)

    return asyncio.run(record()).strip() + "\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_answers_are_as_recorded(name: str, tmp_path: Path) -> None:
    assert recorded(name, tmp_path).splitlines() == (GOLDEN / name).read_text().splitlines()


if __name__ == "__main__":
    for each in RECORDS:
        with tempfile.TemporaryDirectory() as folder:
            GOLDEN.mkdir(exist_ok=True)
            (GOLDEN / each).write_text(recorded(each, Path(folder)))
