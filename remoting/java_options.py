"""Java properties in the environment variables that RocketMQ's start scripts pass to Java.

RouteKeeper reads no Java properties. This module finds properties on which an operator may rely in vain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from routekeeper.remoting.logs import shortened
from routekeeper.remoting.tls_settings import ENFORCING, TlsFile, TlsFlags, TlsSettingError, read_tls_file

#: Variables that RocketMQ's scripts pass to Java, or that Java reads itself. If several of them have a
#: property, Java uses the value in the last variable. Source: runserver.sh and runbroker.sh, RocketMQ 4.9 and
#: 5.3; the manual of java, JDK 17.
_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "JAVA_OPT", "JAVA_OPT_EXT", "_JAVA_OPTIONS")
#: Beginnings of Java's flags that set RocketMQ's own properties.
_FLAGS: Final = ("-Dtls.", "-Drocketmq.")
_QUOTES: Final = "\"'"
#: Properties that demand a protection: the value that demands it, and our own setting with the same meaning.
_DEMANDS: Final = {
    "tls.server.mode": (ENFORCING, "--tls-mode enforcing"),
    "tls.server.need.client.auth": ("require", "--tls-client-auth require"),
    "tls.enable": ("true", "--namesrv-tls on"),
}


def ignored_java_properties(
    environment: Mapping[str, str], tls: TlsFlags, *, to_nameservers: str | None = None
) -> str:
    """Return the names of RocketMQ's Java properties in the environment, for a warning; empty if none.

    The values are left out, because a value may be a password.

    Args:
        environment: Environment variables of this process.
        tls: TLS settings of the port.
        to_nameservers: Value of a broker's setting ``tls.enable``, empty if it is not set. None for a server
            that has no such setting.

    Raises:
        TlsSettingError: If a property in the environment demands a protection, for example
            ``tls.server.mode=enforcing``, and our own settings say neither yes nor no to it. The server would
            then lack this protection, against the operator's wish. Also if the file of ``--tls-config``
            cannot be used.
    """
    found = {}
    for variable in _VARIABLES:
        for word in environment.get(variable, "").split():
            # A shell keeps quotes inside a variable, and then they are part of the word.
            flag, _, value = word.strip(_QUOTES).partition("=")
            if flag.startswith(_FLAGS):
                found[flag.removeprefix("-D")] = variable, value.strip(_QUOTES)
    demanded = {
        key: found[key]
        for key, (value, _) in _DEMANDS.items()
        if key in found and found[key][1].lower() == value
    }
    if demanded:
        file = read_tls_file(tls.config) if tls.config else TlsFile()
        mode = tls.mode or file.server_mode
        # If the port of a broker demands TLS, its connections to nameservers use TLS by default.
        to_others = to_nameservers is None or to_nameservers or file.enable is not None or mode == ENFORCING
        decided = {
            "tls.server.mode": mode,
            "tls.server.need.client.auth": tls.client_auth or file.server_client_auth,
            "tls.enable": to_others,
        }
        for key, (variable, value) in demanded.items():
            if not decided[key]:
                raise TlsSettingError(
                    f"-D{key}={value} in {variable} is not read; use {_DEMANDS[key][1]}, or {key} in the file"
                    " of --tls-config"
                )
    return shortened(", ".join(found))
