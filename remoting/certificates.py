"""Expiry times of certificates, and warnings before a certificate expires.

This module also reads certificate files again after they have changed.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Generic, TypeVar

from routekeeper.remoting.watched_files import WatchedFiles

logger = logging.getLogger(__name__)

DAY_S: Final = 86_400.0
#: Each number is a time before a certificate's expiry, in seconds, at which the operator gets a warning. 0 is
#: the expiry itself.
THRESHOLDS_S: Final = (30 * DAY_S, 7 * DAY_S, 0.0)

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17

T = TypeVar("T")


def thresholds_passed(left_s: float) -> int:
    """Return the number of warning times in :data:`THRESHOLDS_S` that have been reached.

    ``left_s`` is the time to the expiry in seconds.
    """
    return sum(left_s <= threshold for threshold in THRESHOLDS_S)


def ends_of(pem: str) -> list[float]:
    """Return the expiry times of the certificates in a PEM text, in order, in Unix seconds.

    Raises:
        ValueError: A certificate cannot be read, or the text contains no certificate.
    """
    ends = [_not_after(ssl.PEM_cert_to_DER_cert(text)) for text in _blocks(pem)]
    if not ends:
        raise ValueError("it holds no certificate in PEM form")
    return ends


def _blocks(pem: str) -> Iterator[str]:
    at = 0
    while (begin := pem.find(_BEGIN, at)) >= 0 and (end := pem.find(_END, begin)) >= 0:
        at = end + len(_END)
        yield pem[begin:at]


def _not_after(der: bytes) -> float:
    """Return the expiry time of a certificate in Unix seconds.

    Source: RFC 5280, 4.1: Certificate, TBSCertificate, Validity. This code parses the certificate itself,
    because the ssl module returns the expiry time only for peers' certificates.
    """
    try:
        _, certificate, _ = _element(der, 0)
        _, fields, _ = _element(certificate, 0)
        tag, _, at = _element(fields, 0)
        for _ in range(3 if tag == _VERSION else 2):  # skip serial number, algorithm and issuer
            _, _, at = _element(fields, at)
        tag, validity, _ = _element(fields, at)
        if tag != _SEQUENCE:
            raise ValueError("its validity is not where it should be")
        _, _, at = _element(validity, 0)
        tag, text, _ = _element(validity, at)
        form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
        return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC).timestamp()
    except (IndexError, ValueError) as error:
        raise ValueError(f"a certificate in it cannot be read: {error}") from None


def _element(der: bytes, at: int) -> tuple[int, bytes, int]:
    """Return tag and content of the DER element at a position, and the position after it."""
    tag, size = der[at], der[at + 1]
    at += 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(der[at : at + count], "big")
        at += count
    if at + size > len(der):
        raise ValueError("it is cut off")
    return tag, der[at : at + size], at + size


class CertificateFiles(Generic[T]):
    """The files of one certificate, which are read again after each change.

    Warnings are logged before the certificate expires.

    Args:
        what: Name in log lines, such as "raft certificate".
        paths: Paths of the files; the first is the certificate's own file.
        read: Reads the files. The constructor makes the first call; later calls run in a thread. If a later
            call raises an error, the former value stays in force.
        take: Called on the event loop with each newer value.
        ends_at: Returns the certificate's expiry time in Unix seconds.
    """

    def __init__(
        self,
        what: str,
        paths: Sequence[Path],
        read: Callable[[], T],
        take: Callable[[T], None],
        *,
        ends_at: Callable[[T], float],
    ) -> None:
        self._take, self._ends_at = take, ends_at
        self._warned = 0
        self.files = WatchedFiles(what, paths, read, self._take_newer, each=self._warn)

    @property
    def value(self) -> T:
        """The value that was read last."""
        return self.files.value

    @property
    def left_s(self) -> float:
        """Seconds until the certificate expires; below 0 afterwards."""
        return self._ends_at(self.value) - time.time()

    def watch(self) -> None:
        """Begin to watch the files and the expiry time."""
        self._warn()
        self.files.watch()

    def close(self) -> None:
        """Stop watching."""
        self.files.close()

    def _take_newer(self, value: T) -> None:
        self._take(value)
        self._warned = 0

    def _warn(self) -> None:
        """Log a warning if a time in :data:`THRESHOLDS_S` was reached since the last call."""
        left_s = self.left_s
        passed = thresholds_passed(left_s)
        if passed <= self._warned:
            return
        self._warned = passed
        logger.warning(
            "%s %s file=%s until=%s days_left=%.1f: put a new one in its place, it is read without a restart",
            self.files.what,
            "ends soon" if left_s > 0 else "has expired",
            self.files.paths[0],
            until(self._ends_at(self.value)),
            left_s / DAY_S,
        )


def until(ends_at: float) -> str:
    """Return a Unix time in seconds as text in UTC, in the form of log lines."""
    return f"{datetime.fromtimestamp(min(ends_at, 253_402_300_799.0), UTC):%Y-%m-%dT%H:%M:%SZ}"
