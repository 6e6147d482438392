"""Messages to the service manager that started this server (systemd with ``Type=notify``)."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Mapping
from typing import Final, Self

logger = logging.getLogger(__name__)

#: Number of messages that this server sends within :attr:`ServiceManager.watchdog_s`.
_WATCHDOG_TIMES: Final = 3
#: Shortest time in seconds between two watchdog messages. Without this pause, a far too short watchdog time
#: in the systemd unit would keep the event loop busy.
_PAUSE_MIN_S: Final = 0.01
#: Largest number of digits of a time in microseconds, which is a uint64.
_DIGITS_MAX: Final = 20
_US: Final = 1e6


class ServiceManager:
    """Sender of this server's state to the service manager: ready, alive, reloading, stopping.

    Without a socket, the methods do nothing. If a message cannot be sent, the server continues; the first
    failure is logged as a WARNING.

    Args:
        socket_path: Path of the socket (``NOTIFY_SOCKET``). ``@`` begins the name of an abstract socket,
            which has no file. Empty if there is no service manager.
        watchdog_s: Seconds without a message after which the service manager restarts this server; 0 if there
            is no watchdog.
    """

    def __init__(self, socket_path: str, *, watchdog_s: float = 0.0) -> None:
        self._path = f"\0{socket_path[1:]}" if socket_path.startswith("@") else socket_path
        self._watchdog_s = watchdog_s
        self._failed = False

    @classmethod
    def of_environment(cls, environment: Mapping[str, str], *, pid: int) -> Self:
        """Read the variables that systemd sets; see sd_notify(3) and sd_watchdog_enabled(3).

        Args:
            pid: Id of this process; a watchdog that is set for another process is ignored.
        """
        microseconds = environment.get("WATCHDOG_USEC", "")[:_DIGITS_MAX]
        ours = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        watchdog_s = int(microseconds) / _US if ours and microseconds.isdecimal() else 0.0
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog_s=watchdog_s)

    def ready(self, status: str) -> None:
        """Report that this server serves clients.

        If there is a watchdog, also report periodically that the event loop runs.

        Args:
            status: Line for ``systemctl status``.
        """
        self._send(f"READY=1\nSTATUS={status}\n")
        if self._path and self._watchdog_s:
            self._alive(asyncio.get_running_loop())

    def reloading(self) -> None:
        """Report that settings and files are being read again.

        The message contains the present time on the clock that sd_notify(3) prescribes.
        """
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}\n")

    def reloaded(self) -> None:
        """Report that the reload has ended."""
        self._send("READY=1\n")

    def stopping(self) -> None:
        """Report that this server shuts down."""
        self._send("STOPPING=1\n")

    def _alive(self, loop: asyncio.AbstractEventLoop) -> None:
        self._send("WATCHDOG=1\n")
        loop.call_later(max(_PAUSE_MIN_S, self._watchdog_s / _WATCHDOG_TIMES), self._alive, loop)

    def _send(self, message: str) -> None:
        if not self._path:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.sendto(message.encode(), self._path)
        except (OSError, ValueError) as error:
            if not self._failed:
                self._failed = True
                logger.warning("the service manager cannot be reached socket=%r reason=%s", self._path, error)
