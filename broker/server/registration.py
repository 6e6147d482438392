"""Times, targets and content of a broker's registrations (pure).

The schedule is RocketMQ's: a broker registers at start, then periodically. When a topic is created or
changed, it registers that topic at once. At shutdown it unregisters. A lost connection triggers nothing.

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
    """Why a registration is due."""

    START = "start"
    PERIOD = "period"
    TOPIC = "topic"
    PERMISSION = "permission"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionAnswer:
    """One nameserver's answer to request 322.

    Attributes:
        failed: The nameserver did not answer, or answered with an error.
        changed: The field of this name in the header.
        stored: The data version in the body; None if there is none.
    """

    failed: bool = False
    changed: bool = False
    stored: DataVersion | None = None


class RegistrationSchedule:
    """Computes when the next periodic registration is due. Times are loop times in seconds."""

    def __init__(self, *, delay_s: float, period_s: float) -> None:
        self._delay_s = delay_s
        self._period_s = period_s
        self._due: float | None = None

    def started(self, now: float) -> None:
        """Note that the registration at start was sent; a periodic one follows after the short delay."""
        self._due = now + self._delay_s

    def until_due(self, now: float) -> float:
        """Return the seconds to wait; 0 if it is due."""
        assert self._due is not None
        return max(0.0, self._due - now)

    def fired(self, now: float) -> None:
        """Note that a periodic registration begins.

        The rate is fixed, but late registrations cause no burst.
        """
        assert self._due is not None
        self._due += self._period_s
        if self._due <= now:
            self._due = now + self._period_s


def asks_first(trigger: Trigger, *, force_register: bool) -> bool:
    """Return whether to send request 322 before a registration: only if it is periodic and not forced."""
    return trigger is Trigger.PERIOD and not force_register


def is_needed(answers: Sequence[VersionAnswer], own: DataVersion) -> bool:
    """Return whether a nameserver needs the topics: it failed, says "changed", or has another version."""
    return any(answer.failed or answer.changed or answer.stored not in (None, own) for answer in answers)


def registration_body(
    topics: Iterable[TopicConfig], version: DataVersion, *, broker_permission: int
) -> RegisterBody:
    """Make the body of a registration; the broker's own permission limits that of its topics (5.x)."""
    configs = tuple(topics)
    if broker_permission != _READ_WRITE:
        configs = tuple(replace(config, perm=config.perm & broker_permission) for config in configs)
    return RegisterBody(data_version=version, topic_configs=configs, filter_servers=())


def place_holder(route: TopicRouteData, *, cluster: str, name: str, id_: int) -> str | None:
    """Return the address that a route lists under a broker's name and id; None if it lists none."""
    for broker in route.broker_datas:
        if (broker.cluster, broker.broker_name) == (cluster, name):
            return broker.broker_addrs.get(id_)
    return None


def differences(former: Sequence[str], wanted: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the addresses of new nameservers, and of those that are not in the list any more."""
    return tuple(addr for addr in wanted if addr not in former), tuple(
        addr for addr in former if addr not in wanted
    )
