"""Java properties in the environment variables that RocketMQ's start scripts pass to Java.

RouteKeeper reads no Java properties. This module finds properties on which an operator may rely in vain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from routekeeper.remoting.logs import shortened
from routekeeper.remoting.properties import closed_door
from routekeeper.remoting.tls_settings import TlsFlags, TlsSettingError, read_tls_file

#: Variables that RocketMQ's scripts pass to Java, or that Java reads itself. If several of them have a
#: property, Java uses the value in the last variable. Source: runserver.sh and runbroker.sh, RocketMQ 4.9 and
#: 5.3; the manual of java, JDK 17.
_VARIABLES: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "JAVA_OPT", "JAVA_OPT_EXT", "_JAVA_OPTIONS")
#: Beginnings of Java's flags that set RocketMQ's own properties.
_FLAGS: Final = ("-Dtls.", "-Drocketmq.")
_MODE: Final = "tls.server.mode"
_QUOTES: Final = "\"'"


def ignored_java_properties(environment: Mapping[str, str], tls: TlsFlags) -> str:
    """Return the names of RocketMQ's Java properties in the environment, for a warning; empty if none.

    The values are left out, because a value may be a password.

    Args:
        environment: Environment variables of this process.
        tls: TLS settings of the port.

    Raises:
        TlsSettingError: If ``tls.server.mode=enforcing`` is in the environment, and the TLS settings name no
            mode. The port would then accept clients without TLS, against the operator's wish. Also if the
            file of ``--tls-config`` cannot be used.
    """
    found = {}
    for variable in _VARIABLES:
        for word in environment.get(variable, "").split():
            # A shell keeps quotes inside a variable, and then they are part of the word.
            flag, _, value = word.strip(_QUOTES).partition("=")
            if flag.startswith(_FLAGS):
                found[flag.removeprefix("-D")] = variable, value.strip(_QUOTES)
    if _MODE in found:
        variable, value = found[_MODE]
        if closed_door(_MODE, value.lower()) is not None and not _names_mode(tls):
            raise TlsSettingError(
                f"-D{_MODE}={value} in {variable} is not read; use --tls-mode {value.lower()}, or {_MODE} in"
                " the file of --tls-config"
            )
    return shortened(", ".join(found))


def _names_mode(tls: TlsFlags) -> bool:
    return bool(tls.mode or (tls.config and read_tls_file(tls.config).server_mode))
