"""Tests of ``import routekeeper`` in users' programs.

The import must work even if the program's own modules have the same names as RouteKeeper's modules.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import routekeeper
import routekeeper.client.public
from routekeeper import AsyncClient, Client, ClientConfig, Credentials, InvalidArgument, Message
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.fields import GetRouteFields

PROGRAM = """
import routekeeper
from routekeeper import Client, Message

with Client() as started:
    with started.producer("orders") as producer:
        print(producer.send(Message(topic="FaceTopic", body=b"x")).status.name)
    print(type(started).__module__)
"""


def run(folder: Path, nameserver: Any, program: str) -> list[str]:
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error::ResourceWarning", str(folder / "program.py")],
        env={**os.environ, "NAMESRV_ADDR": nameserver.addr},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("own", ["client.py", "client/__init__.py"])
def test_a_module_of_the_users_own_called_client_is_in_nobodys_way(
    own: str, nameserver: Any, broker: Any, tmp_path: Path
) -> None:
    (tmp_path / own).parent.mkdir(exist_ok=True)
    (tmp_path / own).write_text("WHOSE = 'mine'\n")
    program = PROGRAM + "\nimport client\nprint(client.WHOSE)\n"
    assert run(tmp_path, nameserver, program) == ["SEND_OK", "routekeeper.client.public", "mine"]
    # Import the user's module before our package, too: the order must not matter.
    assert run(tmp_path, nameserver, "import client\nprint(client.WHOSE)\n" + PROGRAM) == [
        "mine",
        "SEND_OK",
        "routekeeper.client.public",
    ]


def test_names_are_the_same_whichever_way_they_are_imported() -> None:
    assert (
        routekeeper.__all__ == routekeeper.client.public.__all__ == sorted(routekeeper.client.public.__all__)
    )
    for name in routekeeper.__all__:
        assert getattr(routekeeper, name) is getattr(routekeeper.client.public, name)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_nameservers_are_given_as_text_as_addresses_or_by_the_environment(
    kind: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "e:1;f:2")
    config = ClientConfig(nameservers=("c:1",), call_timeout_s=7.0)
    for arguments, wanted in (
        ({"nameservers": "a:1;b:2"}, ("a:1", "b:2")),
        ({"nameservers": ["a:1", "b:2"]}, ("a:1", "b:2")),
        ({}, ("e:1", "f:2")),
        ({"config": config}, ("c:1",)),
        ({"config": config, "nameservers": "a:1"}, ("a:1",)),
    ):
        made = kind(**arguments)
        assert made.core.config.nameservers == wanted
        assert made.core.config.call_timeout_s == (7.0 if "config" in arguments else 3.0)
    with pytest.raises(InvalidArgument, match="'a' is not host:port"):
        kind("a")
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(InvalidArgument, match="NAMESRV_ADDR"):
        kind()


# Signatures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [ClientConfig(nameservers=("a:1",)), 9876, [b"a:9876"]])
def test_nameservers_of_another_type_are_refused_in_words(wrong: Any) -> None:
    for client in (Client, AsyncClient):
        with pytest.raises(InvalidArgument, match=r"nameservers is a .*pass a ClientConfig as config="):
            client(wrong)


def test_a_signature_covers_every_field_and_the_body() -> None:
    keys = Credentials(access_key="ak", secret_key="12345678", security_token="st")
    fields = {"topic": "T", "a": "é", "B": "2"}
    signed = keys.before_request("addr", RemotingCommand.request(310, fields, b"body"))
    # The signed text has the values of all fields, sorted by the field name: AccessKey, B, SecurityToken, a,
    # topic.
    content = "ak" + "2" + "st" + "é" + "T"
    expected = hmac.new(b"12345678", content.encode() + b"body", hashlib.sha1).digest()
    assert signed.ext_fields == {
        **fields,
        "AccessKey": "ak",
        "SecurityToken": "st",
        "Signature": base64.b64encode(expected).decode(),
    }
    assert keys.before_request("addr", signed).ext_fields == signed.ext_fields, (
        "signing again changes nothing"
    )
    assert "12345678" not in repr(keys)


SEND = {
    "a": "producers",
    "b": "Orders",
    "bname": "broker-a",
    "c": "TBW102",
    "d": "4",
    "e": "1",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "UNIQ_KEY\x017F000001000118B4AAC2\x02WAIT\x01true\x02",
    "j": "0",
    "k": "false",
    "m": "false",
}
OFFSET = {"bname": "broker-a", "consumerGroup": "G", "queueId": "3", "topic": "Orders"}


@pytest.mark.parametrize(
    ("code", "fields", "body", "token", "signature"),
    [
        pytest.param(310, SEND, "body é".encode(), None, "WEh8V8hoZcDQlG4OXZa45wockzc=", id="send"),
        pytest.param(14, OFFSET, b"", "token", "XoUWoBrV+Z9ho7S+6darTqwWyPU=", id="with a token"),
        pytest.param(34, {}, b"", None, "IUc8rrO/0gDch8CjObLQsW2rsiA=", id="no arguments"),
    ],
)
def test_signatures_are_those_of_javas_client(
    code: int, fields: dict[str, str], body: bytes, token: str | None, signature: str
) -> None:
    """AclClientRPCHook of RocketMQ's Java client 5.3.3 made the expected signatures."""
    keys = Credentials(access_key="RocketMQ", secret_key="12345678", security_token=token)
    signed = keys.before_request("addr", RemotingCommand.request(code, fields, body))
    assert signed.ext_fields["Signature"] == signature


def test_all_requests_of_a_client_with_credentials_are_signed(
    new_peer: Callable[..., Any], answers: Any, route_body: Any
) -> None:
    peer = new_peer()
    routes = answers({"T": route_body(broker_a=peer.addr)})
    stored = {"msgId": "0" * 32, "queueId": "0", "queueOffset": "0"}
    peer.answer = lambda request: request.reply(ext_fields=stored) if request.code == 310 else routes(request)
    keys = Credentials(access_key="ak", secret_key="12345678")
    with Client(peer.addr, credentials=keys) as started:
        producer = started.producer("pg")
        producer.send(Message(topic="T", body=b"x"))
        producer.send_oneway(Message(topic="T", body=b"y"))
        started.run(started.core.beat())
    assert {request.code for request in peer.requests} >= {105, 310, 34, 35}
    for request in peer.requests:
        fields = dict(request.ext_fields)
        signature = fields.pop("Signature")
        assert signature == keys.sign(fields, request.body)
    assert GetRouteFields.parse(peer.requests[0].ext_fields).topic == "T"


def test_empty_keys_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        Credentials(access_key="", secret_key="x")


# Types -------------------------------------------------------------------------------------------

TYPED = """
from collections.abc import Sequence

from routekeeper import AsyncClient, Client, Message, ReceivedMessage, SendResult


def listen(batch: Sequence[ReceivedMessage]) -> None:
    for message in batch:
        size: int = len(message.body)


with Client("127.0.0.1:9876") as client:
    result: SendResult = client.producer("orders").send(Message(topic="Orders", body=b"x"))
    reveal_type(result.queue_offset)
    for message in client.pull_consumer("billing", {"Orders": "*"}):
        reveal_type(message)
    client.push_consumer("billing", {"Orders": "*"}, listen)


async def main() -> None:
    async with AsyncClient() as client:
        reveal_type(await client.producer("orders").send(Message(topic="Orders", body=b"x")))
        async with client.pull_consumer("billing", {"Orders": "*"}) as consumer:
            async for message in consumer:
                reveal_type(message.body)
"""
WRONG = """
from routekeeper import Client, Message

with Client(9876) as client:
    client.producer("orders").send(Message(topic="Orders", body="text"))
    client.producer("orders").send(Message(topic="Orders", body=b"x"), timeout="3")
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[int, str]]:
    """Return ``checked(folder, program)``: a function that runs mypy on a program that uses our package.

    The function returns mypy's exit code and output.
    """
    cache = str(tmp_path_factory.mktemp("mypy"))

    def check(folder: Path, program: str) -> tuple[int, str]:
        (folder / "program.py").write_text(program)
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, "program.py"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
            capture_output=True,
            text=True,
            timeout=300,
        )
        return done.returncode, done.stdout

    return check


@pytest.mark.slow
@pytest.mark.timeout(330)
@pytest.mark.parametrize("own", ["client.py", "client/__init__.py"])
def test_a_users_program_is_checked_against_our_types(
    own: str, checked: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    (tmp_path / own).parent.mkdir(exist_ok=True)
    (tmp_path / own).write_text("WHOSE: str = 'mine'\n")
    code, out = checked(tmp_path, TYPED + "\nimport client as mine\n\nprint(mine.WHOSE)\n")
    revealed = [
        line.split("Revealed type is ")[1].strip('"') for line in out.splitlines() if "Revealed" in line
    ]
    ours = ["routekeeper.client.queue_reader.ReceivedMessage", "routekeeper.client.producer.SendResult"]
    assert (code, revealed) == (0, ["int", *ours, "bytes"]), out


@pytest.mark.timeout(330)
def test_a_users_mistakes_are_found_by_our_types(
    checked: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    code, out = checked(tmp_path, WRONG)
    errors = [line for line in out.splitlines() if "error:" in line]
    assert (code, [line.split(":")[1] for line in errors]) == (1, ["4", "5", "6"]), out
