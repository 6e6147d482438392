"""Times, targets and content of a broker's registrations. This module does no I/O and reads no clock.

The schedule is RocketMQ's: a broker registers at its start, then periodically. It registers a topic as soon
as the topic is created or changed. At shutdown the broker unregisters. A lost connection has no effect.

Source: BrokerController.start, registerBrokerAll, registerIncrementBrokerData and needRegister, RocketMQ 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from routekeeper.remoting.codes import PERM_READ, PERM_WRITE
from routekeeper.remoting.registration import RegisterBody
from routekeeper.remoting.route import DataVersion, TopicConfig, TopicRouteData

_READ_WRITE: Final = PERM_READ | PERM_WRITE


class Trigger(Enum):
    """The reason for a registration."""

    START = "start"
    PERIOD = "period"
    TOPIC = "topic"
    PERMISSION = "permission"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAnswer:
    """One nameserver's answer to request 322 (QUERY_DATA_VERSION).

    Attributes:
        failed: True if the nameserver did not answer, or answered with an error.
        changed: The field ``changed`` in the header of the answer.
        stored: The data version in the body of the answer, or None if the answer has no body.
    """

    failed: bool = False
    changed: bool = False
    stored: DataVersion | None = None


class RegistrationSchedule:
    """Schedule of periodic registrations. All times are in seconds of the event loop's clock."""

    def __init__(self, *, delay_s: float, period_s: float) -> None:
        self._delay_s = delay_s
        self._period_s = period_s
        self._due: float | None = None

    def started(self, now: float) -> None:
        """Note that the first registration was sent. The next registration follows after ``delay_s``."""
        self._due = now + self._delay_s

    def until_due(self, now: float) -> float:
        """Return the seconds until the next periodic registration, or 0 if it is due."""
        assert self._due is not None
        return max(0.0, self._due - now)

    def fired(self, now: float) -> None:
        """Note that a periodic registration begins, and compute when the next registration is due.

        Registrations are due at a fixed rate. After a delay of several periods, only one registration runs.
        """
        assert self._due is not None
        self._due += self._period_s
        if self._due <= now:
            self._due = now + self._period_s


def asks_first(trigger: Trigger, *, force_register: bool) -> bool:
    """Return True if the broker must ask nameservers for their version (request 322) before it registers.

    Only periodic registrations ask, and only if the settings do not force registrations.
    """
    return trigger is Trigger.PERIOD and not force_register


def is_needed(answers: Sequence[VersionAnswer], own: DataVersion) -> bool:
    """Return True if any nameserver failed, answered "changed", or has another version of the topics."""
    return any(answer.failed or answer.changed or answer.stored not in (None, own) for answer in answers)


def registration_body(
    topics: Iterable[TopicConfig], version: DataVersion, *, broker_permission: int
) -> RegisterBody:
    """Return the body of a registration. The broker's permission limits the permissions of its topics."""
    configs = tuple(topics)
    if broker_permission != _READ_WRITE:
        configs = tuple(replace(config, perm=config.perm & broker_permission) for config in configs)
    return RegisterBody(data_version=version, topic_configs=configs, filter_servers=())


def place_holder(route: TopicRouteData, *, cluster: str, name: str, id_: int) -> str | None:
    """Return the address that a route lists under a broker's name and id, or None if it lists no address."""
    for broker in route.broker_datas:
        if (broker.cluster, broker.broker_name) == (cluster, name):
            return broker.broker_addrs.get(id_)
    return None


def differences(former: Sequence[str], wanted: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the addresses of new nameservers, and of nameservers that are no longer in the list."""
    return tuple(addr for addr in wanted if addr not in former), tuple(
        addr for addr in former if addr not in wanted
    )
