"""Settings of TLS: a file in RocketMQ's format, command-line flags, and the resulting settings of a port."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from routekeeper.remoting.files import SETTINGS_SIZE_MAX, read_regular
from routekeeper.remoting.properties import parse_properties

DISABLED: Final = "disabled"
PERMISSIVE: Final = "permissive"
ENFORCING: Final = "enforcing"
#: Values of ``--tls-mode``. With ``permissive``, the port also serves clients without TLS.
MODES: Final = (DISABLED, PERMISSIVE, ENFORCING)
#: Values of ``--tls-client-auth``.
CLIENT_AUTH: Final = ("none", "optional", "require")

_TEXTS: Final = {
    "tls.server.certPath": "server_cert",
    "tls.server.keyPath": "server_key",
    "tls.server.keyPassword": "server_key_password",
    "tls.server.trustCertPath": "server_ca",
    "tls.client.certPath": "client_cert",
    "tls.client.keyPath": "client_key",
    "tls.client.keyPassword": "client_key_password",
    "tls.client.trustCertPath": "client_ca",
}
_MODE: Final = "tls.server.mode"
_NEED: Final = "tls.server.need.client.auth"
_CHOICES: Final = {_MODE: ("server_mode", MODES), _NEED: ("server_client_auth", CLIENT_AUTH)}
_SWITCHES: Final = {
    "tls.enable": "enable",
    "tls.client.authServer": "client_checks_servers",
    "tls.server.authClient": "server_checks_clients",
    "tls.test.mode.enable": "test_mode",
}
_PASSWORDS: Final = {"tls.server.keyPassword", "tls.client.keyPassword"}


class TlsSettingError(ValueError):
    """A TLS setting cannot be used; the text is one line for the operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFile:
    """Content of a file of ``--tls-config``.

    The file may contain the twelve keys that RocketMQ allows in such a file, and two further keys:
    ``tls.server.mode`` and ``tls.enable``.

    An attribute is empty or None if the file does not have its key.

    Attributes:
        enable: True if connections to other servers use TLS (``tls.enable``).
        client_checks_servers: ``tls.client.authServer``; if False, clients accept any certificate of a
            server.
        server_checks_clients: ``tls.server.authClient``.
        unknown: Other keys of the file, for a warning.
    """

    server_mode: str = ""
    server_cert: str = ""
    server_key: str = ""
    server_key_password: str = field(default="", repr=False)
    server_ca: str = ""
    server_client_auth: str = ""
    server_checks_clients: bool | None = None
    enable: bool | None = None
    client_cert: str = ""
    client_key: str = ""
    client_key_password: str = field(default="", repr=False)
    client_ca: str = ""
    client_checks_servers: bool | None = None
    test_mode: bool | None = None
    unknown: tuple[str, ...] = ()


def parse_tls_file(text: str) -> TlsFile:
    """Read the text of the file that ``--tls-config`` names; the text has the format of Java's properties.

    Raises:
        TlsSettingError: If the text is malformed, or if a key has a value that is not allowed. One such value
            is ``tls.test.mode.enable=true``: it demands a feature that this program lacks, and ignoring it
            would weaken security.

    Source: TlsSystemConfig and TlsHelper.extractTlsConfigFromFile, RocketMQ 4.9.7 and 5.3.3. RocketMQ accepts
    any word. It reads an unknown word as ``permissive``, ``none`` or false, depending on the key.
    """
    try:
        found = parse_properties(text)
    except ValueError as error:
        raise TlsSettingError(str(error)) from None
    values: dict[str, str | bool | tuple[str, ...]] = {}
    unknown = []
    for key, raw in found.items():
        value = raw if key in _PASSWORDS else raw.strip()
        if key in _TEXTS:
            values[_TEXTS[key]] = value
        elif key in _CHOICES:
            name, choices = _CHOICES[key]
            values[name] = _one_of(key, value.lower(), choices) if value else ""
        elif key in _SWITCHES:
            values[_SWITCHES[key]] = _one_of(key, value.lower(), ("true", "false")) == "true"
        else:
            unknown.append(key)
    if values.get("test_mode"):
        raise TlsSettingError(
            "tls.test.mode.enable=true: a self-made certificate is not supported, allowed is false"
        )
    return TlsFile(**values, unknown=tuple(unknown))  # type: ignore[arg-type]


def read_tls_file(path: str | os.PathLike[str]) -> TlsFile:
    """Read a file of ``--tls-config``.

    Raises:
        TlsSettingError: If the file cannot be read or has a wrong setting; the text names the file.
    """
    try:
        # Java reads properties files as ISO-8859-1.
        return parse_tls_file(read_regular(path, size_max=SETTINGS_SIZE_MAX).decode("latin-1"))
    except OSError as error:
        raise TlsSettingError(f"--tls-config {path}: {error.strerror or error}") from None
    except TlsSettingError as error:
        raise TlsSettingError(f"--tls-config {path}: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTls:
    """TLS settings of a port that this process serves.

    Attributes:
        mode: One of :data:`MODES`; all modes except ``disabled`` need a certificate.
        cert: PEM file with the certificate and its chain.
        key: PEM file with the private key; empty if ``cert`` also contains the key.
        ca: PEM file with the authorities that sign clients' certificates; empty if ``client_auth`` is none.
        client_auth: One of :data:`CLIENT_AUTH`. If a client presents a certificate, it is always checked.
        warnings: Warnings for the operator about the file of ``--tls-config``.
        decided: The keys ``tls.server.mode`` and ``tls.server.need.client.auth``, as far as flags or the file
            decide them.
    """

    mode: str = DISABLED
    cert: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    ca: str = ""
    client_auth: str = "none"
    warnings: tuple[str, ...] = ()
    decided: frozenset[str] = frozenset()


PLAIN: Final = PortTls()
"""Settings of a port without TLS."""


def port_tls(
    *,
    mode: str = "",
    cert: str = "",
    key: str = "",
    ca: str = "",
    client_auth: str = "",
    file: TlsFile | None = None,
) -> PortTls:
    """Combine the flags ``--tls-...`` with the file of ``--tls-config``; a flag overrides the file.

    Raises:
        TlsSettingError: If a needed setting is missing, or if a value is not allowed.
    """
    file = file or TlsFile()
    if mode:
        _one_of("--tls-mode", mode, MODES)
    if client_auth:
        _one_of("--tls-client-auth", client_auth, CLIENT_AUTH)
    if key and not cert:
        raise TlsSettingError("--tls-key needs --tls-cert")
    password = ""
    if not cert:  # take certificate and key from the same source: a mixed pair cannot match
        cert, key, password = file.server_cert, file.server_key, file.server_key_password
        if key and not cert:
            raise TlsSettingError("tls.server.keyPath needs tls.server.certPath")
    mode = mode or file.server_mode or (PERMISSIVE if cert else DISABLED)
    ca = ca or file.server_ca
    client_auth = client_auth or file.server_client_auth or "none"
    if mode == DISABLED:
        return PLAIN
    if not cert:
        raise TlsSettingError(f"--tls-mode {mode} needs --tls-cert and --tls-key, or tls.server.certPath")
    if client_auth != "none" and not ca:
        raise TlsSettingError(
            f"--tls-client-auth {client_auth} needs --tls-ca, or tls.server.trustCertPath: the authority of "
            "the certificates that clients show"
        )
    if client_auth == "none":
        ca = ""
    return PortTls(mode=mode, cert=cert, key=key, key_password=password, ca=ca, client_auth=client_auth)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFlags:
    """The flags ``--tls-...`` of a server; an absent flag is an empty text."""

    mode: str = ""
    cert: str = ""
    key: str = ""
    ca: str = ""
    client_auth: str = ""
    config: str = ""

    def check(self) -> None:
        """Check the flags without reading files. With ``--tls-config``, :meth:`settle` does all checks.

        Raises:
            TlsSettingError: If the flags contradict one another, or if one of them is missing.
        """
        if not self.config:
            self._settle(None)

    def settle(self, in_force: PortTls = PLAIN) -> PortTls:
        """Return the settings that result from the flags and the file of ``--tls-config``; may block.

        If a full disk or an unfinished copy has cut the file, its remaining lines are often valid. So the
        lines of a file in force that decide the mode and the demand for clients' certificates may change, but
        may not disappear.

        Args:
            in_force: Settings of the running server, if it reads the file again.

        Raises:
            TlsSettingError: If the file cannot be used, if flags and file contradict each other, or if a line
                has disappeared.
        """
        if not self.config:
            return self._settle(None)
        file = read_tls_file(self.config)
        settings = self._settle(file)
        values = {_MODE: self.mode or file.server_mode, _NEED: self.client_auth or file.server_client_auth}
        decided = frozenset(key for key, value in values.items() if value)
        settings = replace(settings, warnings=tls_warnings(file), decided=decided)
        if key := _missing_key(settings, in_force):
            raise TlsSettingError(
                f"--tls-config {self.config}: the line {key} is missing, perhaps the file is incomplete;"
                f" write the line, allowed are {', '.join(_CHOICES[key][1])}"
            )
        # A file that switches TLS off needs no other line, but a later file does.
        return replace(settings, decided=decided | in_force.decided)

    def _settle(self, file: TlsFile | None) -> PortTls:
        return port_tls(
            mode=self.mode, cert=self.cert, key=self.key, ca=self.ca, client_auth=self.client_auth, file=file
        )


def _missing_key(settled: PortTls, in_force: PortTls) -> str:
    """Return a key whose line the file of ``--tls-config`` must have; empty if the file may be used."""
    missing = in_force.decided - settled.decided
    if settled.mode == DISABLED and in_force.mode != DISABLED and _MODE not in settled.decided:
        return _MODE  # without the line, the certificate decides: it has disappeared
    if _MODE in missing:
        return _MODE
    return _NEED if _NEED in missing and settled.mode != DISABLED else ""


def http_tls(*, cert: str, key: str, ca: str) -> PortTls:
    """Return the TLS settings of an HTTP port; if ``ca`` is set, every client must present a certificate.

    Raises:
        TlsSettingError: If ``key`` or ``ca`` is set without ``cert``.
    """
    if (key or ca) and not cert:
        raise TlsSettingError(f"--http-tls-{'key' if key else 'ca'} needs --http-tls-cert")
    if not cert:
        return PLAIN
    return PortTls(mode=ENFORCING, cert=cert, key=key, ca=ca, client_auth="require" if ca else "none")


def tls_warnings(file: TlsFile) -> tuple[str, ...]:
    """Return warnings for the operator about a file whose settings are valid."""
    found = [f"{key}: unknown" for key in file.unknown[:10]]
    if file.server_checks_clients is False and file.server_client_auth not in ("", "none"):
        found.append("tls.server.authClient=false is ignored: certificates of clients are checked")
    return tuple(found)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        mark = " " if name.startswith("--") else "="
        raise TlsSettingError(f"{name}{mark}{value[:80]!s}: allowed are {', '.join(allowed)}")
    return value


#: All keys of the file: RocketMQ's twelve keys and two further keys. Documents and tests use this constant.
KEYS: Final[Mapping[str, str]] = {**_TEXTS, **{key: name for key, (name, _) in _CHOICES.items()}, **_SWITCHES}
