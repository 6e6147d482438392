"""A running group starts to require signed requests (``--acl all``), member by member.

The group must lose no route meanwhile.

The broker in this test signs its requests from the start.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from routekeeper.remoting.acl.access import EXCEPTION
from routekeeper.remoting.acl.signing import Keys
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.errors import RemotingError
from routekeeper.remoting.route import decode_route
from routekeeper.remoting.transport.blocking import BlockingClient
from tests.waiting import wait_until

from .cluster import Member, make_members, running

pytestmark = [pytest.mark.faults, pytest.mark.one_core, pytest.mark.slow]

READER = Keys(access_key="readers", secret_key="secret-of-readers")
ADMIN = Keys(access_key="admins-of-all", secret_key="secret-of-admins")
FILE = """
accounts:
- accessKey: readers
  secretKey: secret-of-readers
- accessKey: admins-of-all
  secretKey: secret-of-admins
  admin: true
"""


@contextmanager
def broker(folder: Path, members: list[Member], keys: Path) -> Iterator[subprocess.Popen[str]]:
    with (folder / "broker.log").open("w") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "routekeeper.broker", "--listen", "127.0.0.1:0", "--name", "b"),
                *("-n", ";".join(member.listen for member in members), "--store", str(folder / "store")),
                *("--namesrv-acl-file", str(keys), "--set", "registerNameServerPeriod=10000"),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Asks:
    """A client that sends requests to members. If a member was restarted, the client connects again."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client

    def ask(self, member: Member, code: int, keys: Keys | None = None, **fields: str) -> RemotingCommand:
        command = RemotingCommand.request(code, fields)
        return self._client.invoke(
            member.listen, command if keys is None else keys.signed(command), timeout_s=20.0
        )

    def has_route(self, member: Member, keys: Keys | None) -> bool:
        try:
            answer = self.ask(member, 105, keys, topic="TBW102")
        except RemotingError:
            return False
        return answer.code == 0 and bool(decode_route(answer.body).broker_datas)

    def has_no_route(self, member: Member, keys: Keys | None) -> bool:
        return self.ask(member, 105, keys, topic="TBW102").code == 17

    def has_value(self, member: Member, keys: Keys) -> bool:
        return self.ask(member, 101, keys, namespace="N", key="k").ext_fields == {"value": "v"}

    def is_refused(self, member: Member, code: int, keys: Keys | None = None, **fields: str) -> bool:
        answer = self.ask(member, code, keys, **fields)
        return answer.code == 1 and (answer.remark or "").startswith(EXCEPTION)


def mqadmin(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "routekeeper.client.mqadmin", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_group_goes_from_plain_to_signed_without_losing_its_broker(tmp_path: Path) -> None:
    file, keys = tmp_path / "plain_acl.yml", tmp_path / "tools.yml"
    file.write_text(FILE)
    keys.write_text("accessKey: admins-of-all\nsecretKey: secret-of-admins\n")
    # Each request below is sent only once, so an election would make it fail. The long timeout prevents
    # elections even on a busy machine.
    calm = ("--election-timeout-ms", "2000")
    members = make_members(tmp_path, arguments=calm)
    with running(members) as group, broker(tmp_path, members, keys) as process, BlockingClient() as client:
        asks = Asks(client)
        for member in members:
            wait_until(partial(asks.has_route, member, None), "the broker's route")
        # Restart one member at a time. Meanwhile, the other members serve clients, and the group keeps the
        # broker's route.
        for number, member in enumerate(members):
            member.kill()
            member.reap()
            freshness = ("--routeFreshness", "linearizable") if number == 2 else ()
            member.arguments = (*calm, "--acl", "all", "--acl-file", str(file), *freshness)
            member.start()
            group.wait_ready()
            wait_until(partial(asks.has_route, member, READER), "the broker's route")
        leader = group.leader()
        for member in members:
            for code in (105, 106, 319, 103, 904, 322):
                assert asks.is_refused(member, code, topic="TBW102"), code
            assert asks.is_refused(member, 100, READER, namespace="N", key="k", value="v")
            assert asks.ask(member, 106, READER).code == 0
        # The follower checks the signature and forwards the change unsigned to the leader's raft port.
        follower = group.others(leader)[0]
        put = {"namespace": "N", "key": "k", "value": "v"}
        assert asks.ask(follower, 100, ADMIN, **put).code == 0
        for member in members:
            wait_until(partial(asks.has_value, member, READER), "the value everywhere")
        # mqadmin signs its requests with the keys in tools.yml.
        listed = mqadmin("clusterList", "-n", follower.listen, "--acl-file", str(keys))
        assert (listed.returncode, "DefaultCluster" in listed.stdout) == (0, True), listed
        refused = mqadmin("clusterList", "-n", follower.listen)
        assert refused.returncode != 0
        assert "No accessKey is configured" in refused.stdout + refused.stderr
        # Change a secret in the file. Every member must read the file again without a restart.
        file.write_text(FILE.replace("secret-of-readers", "changed-secret"))
        for member in members:
            wait_until(partial(asks.is_refused, member, 106, READER), "the new file")
            assert asks.ask(member, 106, ADMIN).code == 0
        process.terminate()
        assert process.wait(timeout=60) == 0
        for member in members:
            wait_until(partial(asks.has_no_route, member, ADMIN), "the broker is unregistered")
            assert "secret-of" not in member.log()
