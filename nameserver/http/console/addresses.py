"""Addresses of the nameservers that the console asks, from settings or from brokers.

This module does no I/O.

Anybody may register a broker, and a broker's settings may name any address. So these rules apply:

- The console asks a broker only at the host from which the broker registered.
- If a broker names an address, the console asks this address only if it belongs to a single machine. The
  console never asks multicast addresses. Nor does it ask link-local addresses, because clouds serve secrets
  at such addresses.
- The console asks a loopback address only if the broker that names it is on this machine, too.
- The number of addresses is bounded. If an address gives no answer, the console asks it less and less often.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from routekeeper.nameserver.types import BrokerKey
from routekeeper.remoting.addresses import canonical_host, is_loopback
from routekeeper.remoting.bounds import is_address
from routekeeper.remoting.properties import parse_properties

NAMED_MAX: Final = 8
"""Largest number of nameservers that the console asks because brokers name them."""
NAMED_PER_BROKER: Final = 8
"""Largest number of addresses that are taken from the settings of one broker."""
BROKERS_PER_ROUND: Final = 4
"""Largest number of brokers that the console asks for their settings in one round of requests."""
BROKER_AGAIN_S: Final = 60.0
"""Seconds after which the console asks a broker for its settings again."""
SETTINGS_MAX: Final = 64 * 1024
"""Size limit of a broker's settings, in bytes."""
PAUSE_MAX_S: Final = 60.0
"""Longest pause in seconds between two requests to an address that gives no answer."""


class Named(NamedTuple):
    """A nameserver named in the settings of brokers.

    Attributes:
        named_by: Number of brokers that name the nameserver.
        on_loopback: True if one of these brokers registered from this machine.
    """

    addr: str
    named_by: int
    on_loopback: bool


def registers_from(addr: str, host: str) -> bool:
    """Return True if a broker's address is on the host from which the broker registered."""
    named = addr.rpartition(":")[0]
    return is_address(addr) and (named == host or canonical_host(named) == canonical_host(host))


def why_not_asked(host: str, *, on_loopback: bool) -> str:
    """Return the reason why the console must not ask an IP address that a broker names, or "".

    Args:
        on_loopback: True if the broker is on this machine.
    """
    try:
        address = ipaddress.ip_address(canonical_host(host.partition("%")[0]))
    except ValueError:
        return f"{host[:80]} is no IP address"
    if address.is_loopback and not on_loopback:
        return f"{address} is this machine's own, and the broker is on another one"
    if address.is_unspecified or address.is_multicast or address.is_link_local:
        return f"{address} is no address of one machine"
    if address.is_reserved or address == ipaddress.ip_address("255.255.255.255"):
        return f"{address} is a reserved address"
    return ""


def named_in(body: bytes) -> tuple[str, ...]:
    """Return the nameservers in a broker's settings (answer to request 26); none if they are unreadable."""
    if len(body) > SETTINGS_MAX:
        return ()
    try:
        text = parse_properties(body.decode("utf-8", "replace")).get("namesrvAddr", "")
    except ValueError:
        return ()
    parts = (part.strip() for part in text[: NAMED_PER_BROKER * 300].split(";"))
    return tuple(dict.fromkeys(part for part in parts if is_address(part)))[:NAMED_PER_BROKER]


@dataclass(slots=True)
class _Settings:
    asked_at: float
    named: tuple[str, ...]
    on_loopback: bool


class NamedByBrokers:
    """Nameservers that brokers name, and the brokers that the console must ask next."""

    def __init__(self) -> None:
        self._known: dict[BrokerKey, _Settings] = {}

    def due(self, present: Iterable[BrokerKey], now: float) -> list[BrokerKey]:
        """Return the brokers to ask now, and forget brokers that are not in ``present``."""
        listed = set(present)
        for broker in self._known.keys() - listed:
            del self._known[broker]
        never = [broker for broker in sorted(listed) if broker not in self._known]
        again = sorted(
            (broker for broker, known in self._known.items() if now - known.asked_at >= BROKER_AGAIN_S),
            key=lambda broker: self._known[broker].asked_at,
        )
        return [*never, *again][:BROKERS_PER_ROUND]

    def take(self, broker: BrokerKey, named: tuple[str, ...] | None, *, host: str, now: float) -> None:
        """Store the nameservers that a broker names.

        Args:
            named: None if the broker gave no answer. The nameservers of its last answer then stay.
            host: Host from which the broker registered.
        """
        before = self._known.get(broker)
        if named is None:
            named = before.named if before is not None else ()
        self._known[broker] = _Settings(now, named, is_loopback(host))

    def chosen(self) -> tuple[Named, ...]:
        """Return the nameservers to ask, at most :data:`NAMED_MAX`.

        If there are more, choose the nameservers that are named by brokers on the largest number of hosts.
        """
        hosts: dict[str, set[str]] = {}
        brokers: dict[str, int] = {}
        near: set[str] = set()
        for broker, known in self._known.items():
            for addr in known.named:
                # Count hosts, not brokers: one host may register any number of brokers.
                hosts.setdefault(addr, set()).add(canonical_host(broker.broker_addr.rpartition(":")[0]))
                brokers[addr] = brokers.get(addr, 0) + 1
                if known.on_loopback:
                    near.add(addr)
        first = sorted(hosts, key=lambda addr: (-len(hosts[addr]), -brokers[addr], addr))[:NAMED_MAX]
        return tuple(Named(addr, brokers[addr], addr in near) for addr in sorted(first))


class Pace:
    """Pauses between the console's requests to addresses that gave no answer.

    Each failed request to an address doubles the pause.

    Args:
        every_s: Seconds between two rounds of requests, and the first pause.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._failures: dict[str, tuple[int, float]] = {}

    def is_due(self, addr: str, now: float) -> bool:
        return now >= self._failures.get(addr, (0, 0.0))[1]

    def answered(self, addr: str) -> None:
        self._failures.pop(addr, None)

    def failed(self, addr: str, now: float) -> None:
        count = self._failures.get(addr, (0, 0.0))[0] + 1
        pause_s = min(PAUSE_MAX_S, self._every_s * 2.0 ** min(count - 1, 10))
        # Shorten the pause by 1 percent: a round that begins slightly early must not skip the address.
        self._failures[addr] = count, now + pause_s * 0.99

    def keep(self, addrs: Iterable[str]) -> None:
        """Forget the failures of all addresses that are not in ``addrs``."""
        kept = set(addrs)
        self._failures = {addr: pause for addr, pause in self._failures.items() if addr in kept}
