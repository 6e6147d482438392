"""The keys and certificates that mqadmin uses, and the way in which it checks servers' certificates.

This module reads these settings from the command line and the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from routekeeper.remoting.files import SETTINGS_SIZE_MAX, read_regular

from ..acl import Credentials
from ..config import TlsConfig
from .options import Arguments, UsageError

#: File with keys, below the folder ROCKETMQ_HOME. Source: MixAll.ACL_CONF_TOOLS_FILE.
_TOOLS_FILE: Final = Path("conf", "tools.yml")
_CHECKS: Final[Mapping[str, Literal["host", "authority", "nothing"]]] = {
    "host": "host",
    "authority": "authority",
    "nothing": "nothing",
}


def tls_of(args: Arguments) -> TlsConfig | None:
    """Return the TLS settings from the options; None for connections without TLS.

    Raises:
        UsageError: If an option has a forbidden value, or needs another option that is absent.
    """
    named = {name: args.get(f"tls-{name}") for name in ("ca", "check", "cert", "key", "key-password-file")}
    if not any(named.values()):
        return None
    check = _CHECKS.get(named["check"] or "host")
    if check is None:
        raise UsageError(f"tls-check={named['check']!r}, allowed {'|'.join(_CHECKS)}")
    if check == "nothing" and named["ca"]:
        raise UsageError(
            "--tls-check nothing checks no certificate, so --tls-ca has no use: leave one of them out"
        )
    for name in ("key", "key-password-file"):
        if named[name] and not named["cert"]:
            raise UsageError(f"--tls-{name} needs --tls-cert")
    password_file = named["key-password-file"]
    return TlsConfig(
        ca_file=named["ca"] or "",
        cert_file=named["cert"] or "",
        key_file=named["key"] or "",
        key_password="" if password_file is None else _text(Path(password_file)).strip(),
        check=check,
    )


def credentials_of(args: Arguments, environment: Mapping[str, str]) -> Credentials | None:
    """Return the keys that sign requests; None if there are none.

    Raises:
        UsageError: If the file of ``--acl-file``, or the file below ROCKETMQ_HOME, cannot be used.
    """
    named, home = args.get("acl-file"), environment.get("ROCKETMQ_HOME")
    if named is not None:
        path = Path(named)
    elif home and os.path.exists(Path(home) / _TOOLS_FILE):  # os.path.exists never raises
        path = Path(home) / _TOOLS_FILE
    else:
        return None
    # Import these modules only here, so that commands without a signature start faster.
    from routekeeper.remoting.acl.accounts import AclFileError
    from routekeeper.remoting.acl.loading import read_keys

    try:
        keys = read_keys(path)
    except AclFileError as error:
        raise UsageError(str(error)) from None
    return Credentials(
        access_key=keys.access_key, secret_key=keys.secret_key, security_token=keys.security_token
    )


def _text(path: Path) -> str:
    try:
        return read_regular(path, size_max=SETTINGS_SIZE_MAX).decode()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeError:
        raise UsageError(f"{path}: is not UTF-8 text") from None
