"""Tests of a nameserver with ``--acl``.

The tests check each request code with each value of ``--acl``. They also check changes of the account file,
and the cost of requests from clients without an account.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from routekeeper.nameserver.handlers import SERVED
from routekeeper.remoting.acl.access import EXCEPTION
from routekeeper.remoting.acl.rules import NAMESRV_KINDS, Kind
from routekeeper.remoting.acl.signing import Keys
from routekeeper.remoting.audit_log import LINES_PER_HOST
from routekeeper.remoting.codes import HeaderCodec
from routekeeper.remoting.command import RemotingCommand
from routekeeper.remoting.route import decode_route
from routekeeper.remoting.transport.aio import RemotingClient
from tests.nameserver.http.test_server_http import Running, running
from tests.registrations import registration

READER = Keys(access_key="readers", secret_key="secret-of-readers")
ADMIN = Keys(access_key="admins-of-all", secret_key="secret-of-admins")
FILE = """
globalWhiteRemoteAddresses: []
accounts:
- accessKey: readers
  secretKey: secret-of-readers
- accessKey: admins-of-all
  secretKey: secret-of-admins
  admin: true
"""
#: True if requests of this kind are served in this mode. The three values are for clients without an account,
#: for clients with an account, and for admins.
SERVES = {
    (Kind.READ, "off"): (True, True, True),
    (Kind.READ, "admin"): (True, True, True),
    (Kind.READ, "all"): (False, True, True),
    (Kind.BROKER, "off"): (True, True, True),
    (Kind.BROKER, "admin"): (True, True, True),
    (Kind.BROKER, "all"): (False, False, True),
    (Kind.UNREGISTRATION, "off"): (True, True, True),
    (Kind.UNREGISTRATION, "admin"): (False, False, True),  # only admins may unregister brokers
    (Kind.UNREGISTRATION, "all"): (False, False, True),
    (Kind.CHANGE, "off"): (True, True, True),
    (Kind.CHANGE, "admin"): (False, False, True),
    (Kind.CHANGE, "all"): (False, False, True),
}


@pytest.fixture
def acl_file(tmp_path: Path) -> Path:
    file = tmp_path / "plain_acl.yml"
    file.write_text(FILE)
    file.chmod(0o600)
    return file


async def ask(ns: Running, command: RemotingCommand, keys: Keys | None = None) -> RemotingCommand:
    return await ns.client.invoke(ns.wire, command if keys is None else keys.signed(command))


def is_refused(answer: RemotingCommand) -> bool:
    return answer.code == 1 and (answer.remark or "").startswith(EXCEPTION)


def test_every_code_has_a_kind() -> None:
    assert NAMESRV_KINDS.keys() == SERVED


@pytest.mark.parametrize("mode", ["off", "admin", "all"])
def test_code_is_served_to_whom_the_table_says(tmp_path: Path, acl_file: Path, mode: str) -> None:
    async def main() -> dict[int, tuple[bool, ...]]:
        file, found = "" if mode == "off" else str(acl_file), {}
        async with running(tmp_path, acl=mode, acl_file=file) as ns:
            for code in sorted(NAMESRV_KINDS):
                command = RemotingCommand.request(code, {"topic": "T"})
                answers = [await ask(ns, command, keys) for keys in (None, READER, ADMIN)]
                found[code] = tuple(not is_refused(answer) for answer in answers)
        return found

    assert asyncio.run(main()) == {code: SERVES[kind, mode] for code, kind in NAMESRV_KINDS.items()}


async def test_broker_leaves_over_its_own_connection_only(tmp_path: Path, acl_file: Path) -> None:
    async with running(tmp_path, acl="admin", acl_file=str(acl_file)) as ns, RemotingClient() as broker:
        assert (await ns.register("b", "T", client=broker)).code == 0
        addr = decode_route((await ns.ask(105, topic="T")).body).broker_datas[0].broker_addrs[0]
        farewell = RemotingCommand.request(
            104, {"brokerName": "b", "brokerAddr": addr, "clusterName": "C", "brokerId": "0"}
        )
        assert is_refused(await ask(ns, farewell))
        assert is_refused(await ask(ns, farewell, READER))
        assert (await ns.ask(105, topic="T")).code == 0
        assert (await broker.invoke(ns.wire, farewell)).code == 0
        assert (await ns.ask(105, topic="T")).code == 17
        assert (await ns.register("b", "T", client=broker)).code == 0
        assert (await ask(ns, farewell, ADMIN)).code == 0
        assert (await ns.ask(105, topic="T")).code == 17


@pytest.mark.parametrize("codec", list(HeaderCodec))
async def test_fast_path_answers_signed_route_queries_alone(
    tmp_path: Path, acl_file: Path, codec: HeaderCodec
) -> None:
    async with running(tmp_path, acl="all", acl_file=str(acl_file)) as ns, RemotingClient() as broker:
        unsigned = registration("b", "10.0.0.1:10911", ("T",))
        assert is_refused(await broker.invoke(ns.wire, unsigned))
        assert (await broker.invoke(ns.wire, ADMIN.signed(unsigned))).code == 0
        plain = RemotingCommand(code=105, ext_fields={"topic": "T"}, codec=codec)
        forged = Keys(access_key="readers", secret_key="another").signed(plain)
        for _ in range(3):
            assert is_refused(await ask(ns, plain))
            assert is_refused(await ask(ns, forged))
        assert ns.server.cache.entries == ns.server.cache.hits == 0
        for count in range(1, 4):
            assert decode_route((await ask(ns, plain, READER)).body).broker_datas
            assert ns.server.cache.hits == count
        assert is_refused(await ask(ns, plain))
        # After a change of the secret, the old signature is invalid. The route cache must not answer queries
        # with this signature any more.
        acl_file.write_text(FILE.replace("secret-of-readers", "changed-secret"))
        assert await ns.server.reloads[0].look() == "taken"
        assert is_refused(await ask(ns, plain, READER))


async def test_unsigned_reads_are_let_in_from_white_addresses(tmp_path: Path, acl_file: Path) -> None:
    async with running(tmp_path, acl="all", acl_file=str(acl_file)) as ns:
        assert is_refused(await ns.ask(106))
        acl_file.write_text(FILE.replace("[]", "[127.0.0.*]"))
        assert await ns.server.reloads[0].look() == "taken"
        assert (await ns.ask(106)).code == 0
        assert (await ns.register("b", "T")).code == 0  # unsigned, as from RocketMQ 4.9.7's brokers
        assert (await ns.ask(105, topic="T")).code == 0
        assert ns.server.cache.entries == 0  # cached answers would be sent to other hosts, too


def test_broken_file_keeps_the_old_accounts(
    tmp_path: Path, acl_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> str:
        async with running(tmp_path, acl="all", acl_file=str(acl_file)) as ns:
            acl_file.write_text(FILE + "  defaultTopicPerm: PUBLISH\n")
            outcome = await ns.server.reloads[0].look()
            assert (await ask(ns, RemotingCommand.request(106), READER)).code == 0
            assert is_refused(await ns.ask(106))
            return outcome

    outcome = asyncio.run(main())
    assert outcome == (
        f"refused: {acl_file}: line 9: defaultTopicPerm: 'PUBLISH' is no permission,"
        " allowed are DENY, PUB, SUB, PUB|SUB, SUB|PUB"
    )
    assert "access file not taken, the former one goes on" in caplog.text


def test_refusals_leave_a_bounded_number_of_lines_and_no_secret(
    tmp_path: Path, acl_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running(tmp_path, acl="all", acl_file=str(acl_file)) as ns:
            delete = RemotingCommand.request(216, {"topic": "T"})
            await ask(ns, delete, READER)
            await ask(ns, delete, Keys(access_key="x y", secret_key="secret-of-stranger"))
            for _ in range(300):
                await ask(ns, RemotingCommand.request(105, {"topic": "T"}))
            # This change must be logged, because lines about refused clients have their own limit.
            await ask(ns, delete, ADMIN)

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    lines = [
        record.getMessage() for record in caplog.records if record.name == "routekeeper.nameserver.audit"
    ]
    assert lines[0].split(" ", 2)[2] == (
        "change=DELETE_TOPIC_IN_NAMESRV accessKey=readers"
        ' reason="Need admin permission for request code=216, but accessKey=readers is not" result=refused(1)'
    )
    assert 'accessKey="x y" reason="No acl config for x y" result=refused(1)' in lines[1]
    assert len([line for line in lines if "result=refused(1)" in line]) == LINES_PER_HOST
    assert [line for line in lines if "result=applied" in line]
    assert f"audit lines left out suppressed={302 - LINES_PER_HOST}" in lines
    assert "secret-of" not in caplog.text


def test_changes_by_people_come_from_the_admin_networks_alone(tmp_path: Path) -> None:
    async def main(networks: str) -> dict[int, int]:
        async with running(tmp_path / networks[:3], admin_networks=networks) as ns:
            assert (await ns.register("b", "T")).code == 0
            return {code: (await ns.ask(code, topic="T")).code for code in sorted(SERVED)}

    here, elsewhere = asyncio.run(main("127.0.0.0/8,::1/128")), asyncio.run(main("10.0.0.0/8"))
    changes = {code for code, kind in NAMESRV_KINDS.items() if kind in (Kind.CHANGE, Kind.UNREGISTRATION)}
    assert {code for code, answer in elsewhere.items() if answer == 16} == changes
    assert 16 not in here.values()


async def test_settings_that_are_shown_hold_no_secret(tmp_path: Path, acl_file: Path) -> None:
    async with running(tmp_path, acl="admin", acl_file=str(acl_file)) as ns:
        shown = (await ns.ask(319)).body.decode()
        assert "acl=admin\n" in shown
        assert "secret" not in shown
        _, metrics = await ns.get("/metrics")
        assert "secret" not in metrics
        change = RemotingCommand.request(318, {}, b"acl=off\n")
        assert (await ask(ns, change, ADMIN)).code == 16  # ACL settings change only at a restart
        assert is_refused(await ask(ns, RemotingCommand.request(216, {"topic": "T"})))
