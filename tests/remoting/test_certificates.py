"""Tests of certificates' expiry times, and of the warnings before the certificates expire.

There is one warning at each threshold.
"""

from __future__ import annotations

import asyncio
import calendar
import logging
import time
from pathlib import Path

import pytest

from routekeeper.remoting.certificates import DAY_S, CertificateFiles, ends_of, thresholds_passed
from routekeeper.remoting.tls_settings import PortTls, TlsSettingError
from routekeeper.remoting.transport.port_context import load_port
from tests.tls import CERTS, Authority, key, pem


def text(name: str) -> str:
    return (CERTS / f"{name}.pem").read_text()


def test_the_end_of_each_certificate_in_a_file_is_read() -> None:
    member, authority = ends_of(text("member")), ends_of(text("authority"))
    assert time.gmtime(member[0]).tm_year == 2120  # the form GeneralizedTime has four digits for the year
    assert ends_of(f"a comment\n{text('member')}{text('authority')}") == member + authority
    assert ends_of(text("expired"))[0] < time.time()


def test_an_end_before_2050_is_read_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, _ = authority.issue(days=10)  # the form UTCTime has two digits for the year
    assert 9.9 * DAY_S < ends_of(Path(cert).read_text())[0] - time.time() <= 10 * DAY_S


@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_certificate_that_is_cut_off_is_refused(cut: int) -> None:
    lines = text("member").splitlines()
    body = "".join(lines[1:-1])[: cut // 4 * 4]
    with pytest.raises(ValueError, match=r"cannot be read|no certificate"):
        ends_of(f"{lines[0]}\n{body}\n{lines[-1]}\n")


def test_a_file_without_a_certificate_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("nothing")
    settings = PortTls(mode="permissive", cert=str(tmp_path / "empty"), key=key("member"))
    with pytest.raises(TlsSettingError, match="empty: it holds no certificate in PEM form"):
        load_port(settings)


def test_the_earlier_end_of_certificate_and_authority_counts() -> None:
    settings = PortTls(
        mode="enforcing", cert=pem("expired"), key=key("expired"), ca=pem("authority"), client_auth="require"
    )
    assert load_port(settings).ends_at == ends_of(text("expired"))[0]


def test_thresholds() -> None:
    days = [31, 29.9, 6.9, -0.1]
    assert [thresholds_passed(left * DAY_S) for left in days] == [0, 1, 2, 3]


def test_each_threshold_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cert"
    path.write_text("x")
    ends_at = float(calendar.timegm((2030, 6, 1, 0, 0, 0)))
    files = CertificateFiles("test certificate", (path,), lambda: None, print, ends_at=lambda _: ends_at)
    now = ends_at - 40 * DAY_S
    monkeypatch.setattr(time, "time", lambda: now)

    async def looks() -> None:
        nonlocal now
        for _ in range(90):
            await files.files.look()
            now += DAY_S / 2

    with caplog.at_level(logging.WARNING):
        asyncio.run(looks())
    said = [" ".join(record.getMessage().split()[2:4]) for record in caplog.records]
    assert said == ["ends soon", "ends soon", "has expired"]
    assert "until=2030-06-01T00:00:00Z" in caplog.text
