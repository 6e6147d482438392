"""What both drivers need of the machine: who we are, one HTTP GET, the nameservers' setting."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final

from client.core import Identity
from client.operation import FetchReply

_REPLY_SIZE_MAX: Final = 16 * 1024 * 1024
_serials: Final = itertools.count(secrets.randbits(31))


def local_identity() -> Identity:
    """Return an identity for one more client of this process."""
    return Identity(ip=local_ip(), pid=os.getpid(), serial=next(_serials) & 0xFFFFFFFF)


def local_ip() -> str:
    """Return the address this machine uses towards others, the loopback one if it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # documentation network: chooses a source address, sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def http_get(url: str, timeout_s: float) -> FetchReply:
    """GET a page; a status other than 200 is a reply, not an error.

    Raises:
        OSError: If there is no reply, or one above 16 MiB.
        ValueError: If ``url`` is none or not HTTP.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no HTTP address")
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as reply:
            data = reply.read(_REPLY_SIZE_MAX + 1)
            status = reply.status
    except urllib.error.HTTPError as error:
        with error:
            data = error.read(_REPLY_SIZE_MAX + 1)
        status = error.code
    if len(data) > _REPLY_SIZE_MAX:
        raise OSError(f"reply of {url} is above {_REPLY_SIZE_MAX} bytes")
    return FetchReply(status, data.decode("utf-8", "replace"))


def nameservers_from(environment: Mapping[str, str]) -> str | None:
    """Return the text of NAMESRV_ADDR, or None if it is unset or blank."""
    return environment.get("NAMESRV_ADDR", "").strip() or None
