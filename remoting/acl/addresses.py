"""Sets of addresses: white list entries of plain_acl.yml, and networks in CIDR form.

This module resolves no names.

Source: RemoteAddressStrategyFactory, RocketMQ 4.9. This module differs from RocketMQ in two points. First,
the parts of an address after a wildcard or a range must match, too: ``10.0.*.5`` does not match ``10.0.1.1``.
Second, a range may begin or end at 0.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

#: Patterns that match every host.
_EVERYBODY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
#: Largest number of alternatives (addresses in braces or between commas) of one pattern.
_ALTERNATIVES_MAX: Final = 1024
_DECIMAL: Final = re.compile(r"[0-9]{1,3}")
_HEX: Final = re.compile(r"[0-9A-Fa-f]{1,4}")
_FORMS: Final = (
    "allowed are *, an address, parts that are * or FROM-TO, a list in braces as the last part, and addresses"
    " separated by commas"
)

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressError(ValueError):
    """Error: a text is not a valid set of addresses or networks. The message is one line."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """A set of addresses.

    Attributes:
        text: The set as it is written in the file.
    """

    text: str
    _everybody: bool
    _patterns: tuple[tuple[range, ...], ...]

    def match(self, host: str) -> bool:
        """Return True if a host is in the set.

        Args:
            host: An IP address; brackets and an IPv6 zone are ignored.
        """
        if self._everybody:
            return True
        parts = _parts_of(host)
        return parts is not None and any(
            len(pattern) == len(parts) and all(map(_within, parts, pattern)) for pattern in self._patterns
        )


def _within(part: int, allowed: range) -> bool:
    return part in allowed


def parse_addresses(text: str) -> Addresses:
    """Parse one entry of a white list.

    Raises:
        AddressError: The text has none of the allowed forms.
    """
    entry = text.strip()
    if entry in _EVERYBODY:
        return Addresses(entry, True, ())
    if entry.endswith("}"):
        head, mark, alternatives = entry.partition("{")
        texts = [head + part.strip() for part in alternatives[:-1].split(",")]
        if not mark or not head.endswith((".", ":")):
            raise AddressError(f"{_shown(text)} names no addresses: {_FORMS}")
    else:
        texts = [part.strip() for part in entry.split(",")]
        if len(texts) > 1 and any("*" in part or "-" in part for part in texts):
            raise AddressError(f"{_shown(text)}: a list with commas holds plain addresses only")
    if len(texts) > _ALTERNATIVES_MAX:
        raise AddressError(f"{_shown(text)} names {len(texts)} addresses, allowed are {_ALTERNATIVES_MAX}")
    patterns = []
    for each in texts:
        pattern = _pattern(each)
        if pattern is None:
            raise AddressError(f"{_shown(text)} names no addresses: {_FORMS}")
        patterns.append(pattern)
    return Addresses(entry, False, tuple(patterns))


def _shown(text: str) -> str:
    return repr(text[:100])


def _pattern(text: str) -> tuple[range, ...] | None:
    if ":" not in text:
        parts = text.split(".")
        if len(parts) != 4:
            return None
        found = [_range(part.strip(), _DECIMAL, 10, 256) for part in parts]
    else:
        left, mark, right = text.partition("::")
        before = left.split(":") if left else []
        after = right.split(":") if right else []
        missing = 8 - len(before) - len(after)
        if missing < (1 if mark else 0) or (missing and not mark):
            return None
        spread = [*before, *["0"] * missing, *after]
        found = [_range(part.strip(), _HEX, 16, 65536) for part in spread]
    ranges = tuple(each for each in found if each is not None)
    return ranges if len(ranges) == len(found) else None


def _range(part: str, form: re.Pattern[str], base: int, end: int) -> range | None:
    if part == "*":
        return range(end)
    first, mark, last = part.partition("-")
    if not form.fullmatch(first) or (mark and not form.fullmatch(last)):
        return None
    low = int(first, base)
    high = int(last, base) if mark else low
    return range(low, high + 1) if low <= high < end else None


@lru_cache(maxsize=4096)
def _address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(maxsize=4096)
def _parts_of(host: str) -> tuple[int, ...] | None:
    address = _address_of(host)
    if address is None:
        return None
    packed = address.packed
    if address.version == 4:
        return tuple(packed)
    return tuple(packed[at] << 8 | packed[at + 1] for at in range(0, 16, 2))


@dataclass(frozen=True, slots=True)
class Networks:
    """Networks from which requests are allowed.

    Attributes:
        text: The networks as they are written in the setting.
    """

    text: str
    _networks: tuple[_Network, ...]

    def match(self, host: str) -> bool:
        """Return True if a host is in one of the networks."""
        address = _address_of(host)
        return address is not None and any(address in network for network in self._networks)


def parse_networks(text: str) -> Networks:
    """Parse networks in CIDR form, separated by commas. A single address is a network of one address.

    Raises:
        AddressError: An item is not a network, or the text contains no items.
    """
    parts: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    networks: list[_Network] = []
    for part in parts:
        try:
            networks.append(ipaddress.ip_network(part))
        except ValueError as error:
            why = "has bits set behind its prefix" if "host bits" in str(error) else "is no network"
            raise AddressError(f"{_shown(part)} {why}; allowed is a form as 10.0.0.0/8 or fd00::/8") from None
    if not networks:
        raise AddressError("names no network; allowed is a form as 10.0.0.0/8,fd00::/8")
    return Networks(text, tuple(networks))
