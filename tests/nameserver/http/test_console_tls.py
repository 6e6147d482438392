"""Tests of the console's requests to other nameservers over TLS, with good and wrong certificates."""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from routekeeper.nameserver.http.console.asking import peer_context
from routekeeper.nameserver.settings.declared import NamesrvSettings
from tests.nameserver.http.consoles import Server, servers
from tests.ports import free_addresses
from tests.tls import client_context, key, pem
from tests.waiting import WITHIN_S, wait_until


def flags(certificate: str, *, authority: bool = True) -> tuple[str, ...]:
    found = ("--http-tls-cert", pem(certificate), "--http-tls-key", key(certificate))
    return (*found, "--http-tls-ca", pem("authority")) if authority else found


def peers_of(server: Server, certificate: str | None) -> dict[str, dict[str, Any]]:
    """Return the console's entries about all other nameservers, as a dict by their addresses.

    Args:
        certificate: Name of the certificate that this client presents; None for no certificate.
    """
    url = f"https://{server.http}/v1/console/cluster"
    with urllib.request.urlopen(url, timeout=WITHIN_S, context=client_context(certificate)) as answer:
        found = json.load(answer)["nameservers"]
    return {each["asked_at"]: each for each in found if each["state"] != "this"}


def is_outcome(peer: dict[str, Any]) -> bool:
    """Return True if the console's request to a nameserver was answered or failed.

    A timeout is not a failure here, because a busy machine may cause it.
    """
    return peer["state"] not in ("asking", "unknown") and not peer["reason"].startswith("no answer within ")


@pytest.mark.parametrize("authority", [pem("authority"), ""], ids=["own authority", "the system's"])
def test_authorities_that_other_ports_accept_are_accepted_under_each_python(
    authority: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python 3.13 on, ``ssl.create_default_context`` refuses an authority without a key usage."""
    made = ssl.create_default_context

    def of_python_3_13(*args: Any, **options: Any) -> ssl.SSLContext:
        context = made(*args, **options)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", of_python_3_13)
    context = peer_context(
        NamesrvSettings(http_tls_cert=pem("member"), http_tls_key=key("member"), http_tls_ca=authority)
    )
    assert context is not None
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.slow
def test_peers_are_asked_by_tls_and_those_with_a_wrong_certificate_are_shown_as_such(tmp_path: Path) -> None:
    here, good, stranger, expired, plain, lonely = addresses = free_addresses(6)
    kinds = {here: flags("member"), good: flags("member"), stranger: flags("stranger")}
    kinds |= {expired: flags("expired"), plain: (), lonely: flags("member", authority=False)}
    peers = ("--console-peers", ",".join(addresses))
    found = [
        Server(tmp_path / str(number), *kinds[http], *peers, http=http)
        for number, http in enumerate(addresses)
    ]
    with servers(*found):

        def all_asked() -> dict[str, dict[str, Any]]:
            shown = peers_of(found[0], "member")
            return shown if len(shown) == 5 and all(map(is_outcome, shown.values())) else {}

        shown = wait_until(all_asked, "an outcome of each question")
        assert {addr: each["state"] for addr, each in shown.items()} == {
            good: "answered",
            stranger: "silent",
            expired: "silent",
            plain: "silent",
            lonely: "answered",
        }
        assert shown[stranger]["reason"].startswith("its certificate is refused: ")
        assert shown[expired]["reason"] == "its certificate is refused: certificate has expired"
        assert shown[plain]["reason"].startswith("TLS failed: ")
        assert shown[good]["topics"] == 0  # the console has read the answer: the table has 0 topics

        def refused() -> str:
            peer = peers_of(found[-1], None).get(here)
            return str(peer["reason"]) if peer and is_outcome(peer) else ""

        # The last nameserver has no ``--http-tls-ca``, so it does not trust the private authority that signed
        # the other nameservers' certificates.
        assert wait_until(refused, "its outcome").startswith("its certificate is refused: ")
