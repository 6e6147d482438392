"""Tests of the watched TLS files of a port: a damaged file of ``--tls-config`` switches no protection off."""

from __future__ import annotations

from pathlib import Path

import pytest

from routekeeper.remoting.java_options import ignored_java_properties
from routekeeper.remoting.tls_settings import TlsFlags, TlsSettingError
from routekeeper.remoting.transport.port_context import PortFiles, watched_port
from routekeeper.remoting.transport.secured import PortContext
from tests.tls import CERTS

MODE = "tls.server.mode=enforcing\n"
PAIR = "tls.server.certPath=member.pem\ntls.server.keyPath=member.key\n"
CLIENTS = "tls.server.need.client.auth=require\ntls.server.trustCertPath=authority.pem\n"
PERMISSIVE = "tls.server.mode=permissive\n"
DISABLED = "tls.server.mode=disabled\n"


class Port:
    """A port with a file of ``--tls-config``, and the TLS context that new connections use."""

    def __init__(self, config: Path, text: str, **flags: str) -> None:
        self._config = config
        self.write(text)
        files = watched_port(TlsFlags(config=str(config), **flags), self._take)
        assert files is not None
        self.files: PortFiles = files
        self.current = files.value

    def _take(self, context: PortContext) -> None:
        self.current = context

    def write(self, text: str) -> None:
        """Rewrite the file in place."""
        self._config.write_text(text)

    async def look(self, text: str) -> str:
        """Rewrite the file, and return the outcome of the next check."""
        self.write(text)
        return await self.files.files.look()

    @property
    def kind(self) -> str:
        """The demands on new connections: the mode, and the rule for clients' certificates."""
        if self.current.context is None:
            return "disabled"
        mode = "enforcing" if self.current.demanded else "permissive"
        return f"{mode} {self.current.context.verify_mode.name}"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(CERTS)
    return tmp_path / "tls.properties"


@pytest.mark.parametrize(
    "lines",
    [(MODE, PAIR, CLIENTS), (PAIR, CLIENTS, MODE), (CLIENTS, MODE, PAIR)],
    ids=["mode first", "mode last", "clients first"],
)
async def test_a_file_cut_at_any_length_keeps_tls_and_clients_certificates_demanded(
    lines: tuple[str, ...], config: Path
) -> None:
    text = "".join(lines)
    port = Port(config, text)
    for length in range(len(text)):
        outcome = await port.look(text[:length])
        whole = text[:length] == text.rstrip("\n")
        assert outcome.startswith("refused: ") is not whole, f"{length}: {outcome}"
        assert port.kind == "enforcing CERT_REQUIRED", text[:length]
    await port.look(text)
    assert await port.look(text + "# changed\n") == "taken"
    port.files.close()


@pytest.mark.parametrize(
    ("text", "changed", "key"),
    [
        (MODE + PAIR, PAIR, "tls.server.mode"),
        (MODE + PAIR, "", "tls.server.mode"),
        (MODE + PAIR, "# nothing\n", "tls.server.mode"),
        (MODE + PAIR, "tls.server.mode=\n" + PAIR, "tls.server.mode"),
        (PAIR, "", "tls.server.mode"),
        (PAIR + CLIENTS, PAIR, "tls.server.need.client.auth"),
        (MODE + PAIR + CLIENTS, PERMISSIVE + PAIR, "tls.server.need.client.auth"),
        (PAIR + CLIENTS.replace("require", "optional"), PAIR, "tls.server.need.client.auth"),
    ],
    ids=[
        "mode",
        "all lines",
        "all lines but a comment",
        "value of the mode",
        "certificate without a mode",
        "clients",
        "clients, another mode",
        "clients, optional",
    ],
)
async def test_a_line_that_disappears_switches_nothing_off_and_the_log_names_it_once(
    text: str, changed: str, key: str, config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = Port(config, text)
    former = port.kind
    port.write(changed)
    for _ in range(2):
        assert (await port.files.files.look()).startswith("refused: ")
    assert port.kind == former
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        f"tls certificate not taken, the former one goes on error=--tls-config {config}: the line {key} is"
        " missing, perhaps the file is incomplete; write the line, allowed are "
    )
    assert await port.look(text + "# repaired\n") == "taken"
    port.files.close()


@pytest.mark.parametrize(
    ("flags", "text", "reason"),
    [
        ({"mode": "enforcing"}, PAIR, "needs --tls-cert and --tls-key"),
        ({"cert": "member.pem", "key": "member.key"}, MODE, "the line tls.server.mode is missing"),
        ({"client_auth": "require"}, PAIR + CLIENTS, "the line tls.server.mode is missing"),
    ],
    ids=["mode", "certificate", "clients"],
)
async def test_an_empty_file_beside_flags_switches_nothing_off(
    flags: dict[str, str], text: str, reason: str, config: Path
) -> None:
    port = Port(config, text, **flags)
    former = port.kind
    assert reason in await port.look("")
    assert port.kind == former
    port.files.close()


@pytest.mark.parametrize(
    ("flags", "text", "changed", "kind"),
    [
        ({}, MODE + PAIR + CLIENTS, DISABLED, "disabled"),
        ({}, MODE + PAIR, PERMISSIVE + PAIR, "permissive CERT_NONE"),
        ({}, PAIR + CLIENTS, PAIR + CLIENTS.replace("require", "none"), "permissive CERT_NONE"),
        ({"mode": "enforcing"}, PERMISSIVE + PAIR, PAIR, "enforcing CERT_NONE"),
        ({}, "", MODE + PAIR + CLIENTS, "enforcing CERT_REQUIRED"),
    ],
    ids=["disabled", "permissive", "no certificates of clients", "a flag decides", "the first demands"],
)
async def test_a_line_that_changes_is_taken_and_may_switch_off_a_demand(
    flags: dict[str, str], text: str, changed: str, kind: str, config: Path
) -> None:
    port = Port(config, text, **flags)
    assert await port.look(changed) == "taken"
    assert port.kind == kind
    port.files.close()


async def test_a_refused_file_does_not_weaken_the_demands_of_the_one_in_force(config: Path) -> None:
    """The first new file names a certificate that is missing, and the second one lacks the lines."""
    port = Port(config, MODE + PAIR + CLIENTS)
    assert "none.pem" in await port.look(
        PERMISSIVE + "tls.server.certPath=none.pem\ntls.server.need.client.auth=none\n"
    )
    assert "the line tls.server.mode is missing" in await port.look(PAIR)
    assert port.kind == "enforcing CERT_REQUIRED"
    port.files.close()


@pytest.mark.parametrize(
    ("demand", "files", "key"),
    [
        ("mode=enforcing", [DISABLED, PAIR], "mode"),
        ("mode=enforcing", [PERMISSIVE + PAIR, PAIR], "mode"),
        ("need.client.auth=require", [DISABLED + CLIENTS, MODE + PAIR], "need.client.auth"),
        ("need.client.auth=require", [MODE + PAIR + CLIENTS, DISABLED, MODE + PAIR], "need.client.auth"),
    ],
    ids=["from disabled", "from permissive", "clients, from disabled", "clients, in two steps"],
)
async def test_a_file_without_a_line_that_a_java_property_makes_necessary_at_a_start_is_not_taken(
    demand: str, files: list[str], key: str, config: Path
) -> None:
    """A start with such a property in ``JAVA_OPT`` accepts the first file, and refuses the last one."""
    environment, flags = {"JAVA_OPT": f"-Dtls.server.{demand}"}, TlsFlags(config=str(config))
    port = Port(config, files[0])
    assert ignored_java_properties(environment, flags)
    for text in files[1:-1]:
        assert await port.look(text) == "taken"
    former = port.kind
    assert f"the line tls.server.{key} is missing" in await port.look(files[-1])
    with pytest.raises(TlsSettingError, match="in JAVA_OPT is not read"):
        ignored_java_properties(environment, flags)
    assert port.kind == former
    assert await port.look(MODE + PAIR + CLIENTS) == "taken"
    assert port.kind == "enforcing CERT_REQUIRED"
    port.files.close()
