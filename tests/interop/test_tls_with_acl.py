"""Test of Apache's mqadmin and Java's clients at our servers that demand certificates and signatures."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from routekeeper import Client, NoNameserver, ResponseError, TlsConfig

from .apache import START_S, Apache, wait_until
from .ours import PAIRS, await_broker, await_namesrv, launch_broker, mode_flags, start_namesrv
from .patient import patient
from .test_acl import ACCOUNTS, ADMIN, CLIENT, KEYS
from .test_tls import TLS
from .tls_files import AUTHORITY, MODE_FLAGS, TO_NAMESRV, java_client

pytestmark = pytest.mark.interop

COUNT = 20


@pytest.mark.parametrize(("mode", "release"), PAIRS)
def test_java_with_certificate_and_keys_is_served_where_both_are_demanded(
    apaches: dict[str, Apache], mode: str, release: str, tmp_path: Path
) -> None:
    apache, accounts, keys = apaches[release], tmp_path / "accounts.yml", tmp_path / "tools.yml"
    accounts.write_text(ACCOUNTS)
    keys.write_text(KEYS)
    flags = [*mode_flags(mode), "--data", str(tmp_path / "data"), *MODE_FLAGS["enforcing"]]
    flags += ["--acl", "all", "--acl-file", str(accounts)]
    settings = {
        **TO_NAMESRV,
        "tlsMode": "enforcing",
        "tlsCert": TLS.cert_file,
        "tlsKey": TLS.key_file,
        "tlsCa": AUTHORITY,
        "tlsClientAuth": "require",
        "aclEnable": "true",
        "aclFile": str(accounts),
        "namesrvAclFile": str(keys),
    }
    with ExitStack() as stack:
        namesrv = start_namesrv(flags, tmp_path / "namesrv", "127.0.0.1:0")
        stack.callback(namesrv.kill)
        await_namesrv(namesrv)
        addrs = [namesrv.addr]
        broker = launch_broker(addrs, tmp_path, name="guarded", settings=settings)
        stack.callback(broker.kill)
        stack.callback(apache.end_clients)
        ours = stack.enter_context(Client(config=patient(addrs, tls=TLS), credentials=ADMIN))

        def routed(topic: str) -> bool:
            try:
                return len(ours.route(topic).broker_datas) == 1
            except ResponseError:
                return False

        wait_until(lambda: routed("TBW102"), "the broker's route", START_S)
        addr = await_broker(broker, []).addr

        def admin(*arguments: str) -> str:
            session: dict[str, Any] = {"session": "keys over TLS", "keys": KEYS, "properties": java_client()}
            return apache.admin(*arguments, namesrvs=addrs, **session).stdout

        assert "success" in admin("updateTopic", "-b", addr, "-t", "Orders")
        assert addr in admin("clusterList")
        wait_until(lambda: routed("Orders"), "the topic's route", START_S)

        sent = apache.produce(addrs, "Orders", COUNT, properties=java_client(), **CLIENT)
        assert sent["status SEND_OK"] == str(COUNT), sent
        facts = apache.consume(addrs, "Orders", "readers", COUNT, properties=java_client(), **CLIENT)
        assert facts["distinct"] == str(COUNT), facts
        # Our servers refuse a client with a certificate but no access key, and a client with a key but no
        # certificate.
        sent = apache.produce(addrs, "Orders", 1, properties=java_client())
        assert "No route info of this topic" in sent["error"], sent
        wait_until(lambda: 'accessKey="" reason="No accessKey is configured"' in namesrv.log(), "the line")
        keyed = stack.enter_context(
            Client(config=patient(addrs, tls=TlsConfig(ca_file=AUTHORITY)), credentials=ADMIN)
        )
        with pytest.raises(NoNameserver, match="it refuses our certificate"):
            keyed.route("Orders")
