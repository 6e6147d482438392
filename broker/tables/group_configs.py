"""Consumer group configurations with their data version: the content of ``subscriptionGroup.json``.

This module reads no clock and accesses no file. It only writes log lines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from routekeeper.broker.store.journal import Change, Changes
from routekeeper.remoting.bodies import SubscriptionGroupConfig, SubscriptionGroupTable
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.lenient import FILE
from routekeeper.remoting.route import DataVersion

logger = logging.getLogger(__name__)

#: Largest number of queues of a retry topic. The bound limits the time of loops over all queues.
RETRY_QUEUE_NUMS_MAX: Final = 1024
#: Groups that exist in every broker. Source: SubscriptionGroupManager.init.
PREDEFINED: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


class GroupConfigs:
    """Configurations of the broker's consumer groups. Each change increments the data version.

    Attributes:
        changes: Changes that neither the table's file nor its journal contains yet.
        is_journaled: True if the file from which this table was loaded has a journal.
    """

    def __init__(self) -> None:
        self._configs = {name: SubscriptionGroupConfig(group_name=name) for name in PREDEFINED}
        self._version = DataVersion()
        self.changes = Changes()
        self.is_journaled = False

    @property
    def data_version(self) -> DataVersion:
        return self._version

    def __len__(self) -> int:
        return len(self._configs)

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(self._configs.values())

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        return self._configs.get(group)

    def put(self, config: SubscriptionGroupConfig, *, now_ms: int) -> bool:
        """Create or replace a group's configuration. Return True if the table changed."""
        if self._configs.get(config.group_name) == config:
            return False
        self._configs[config.group_name] = config
        self._version = self._version.advanced(now_ms=now_ms)
        self.changes.note(Change(self._version, put=(config,)))
        return True

    def delete(self, group: str, *, now_ms: int) -> bool:
        if self._configs.pop(group, None) is None:
            return False
        self._version = self._version.advanced(now_ms=now_ms)
        self.changes.note(Change(self._version, delete=(group,)))
        return True

    def to_json(self) -> bytes:
        """Return the encoded table, which answers request 201 (GET_ALL_SUBSCRIPTIONGROUP_CONFIG)."""
        return self.snapshot()()

    def snapshot(self, *, journaled: bool = False) -> Callable[[], bytes]:
        """Return a function that encodes the current table. The function may run later and in any thread."""
        return SubscriptionGroupTable(
            data_version=self._version, groups=dict(self._configs), journal=journaled
        ).encode

    def load(self, text: str) -> None:
        """Load a stored file. Predefined groups that the file does not contain stay in the table.

        Raises:
            ValueError: If the file cannot be read. The table is then unchanged.
        """
        try:
            stored = SubscriptionGroupTable.decode(text.encode(), FILE)
        except RemoteProtocolError as error:
            raise ValueError(f"subscriptionGroup.json: {error}") from None
        self._configs |= {name: _within_bounds(config) for name, config in stored.groups.items()}
        self._version = stored.data_version
        self.is_journaled = stored.journal

    def apply(self, change: Mapping[str, Any]) -> bool:
        """Apply a change from the journal, unless the table already contains it.

        Returns:
            False if changes between the table's version and this change are missing, else True.

        Raises:
            ValueError: If the JSON is not a change of groups. The table is then unchanged.
        """
        try:
            version = DataVersion.from_json(change.get("dataVersion"))
            put = [_within_bounds(SubscriptionGroupConfig.from_json(value)) for value in change["put"]]
            delete: list[str] = change["delete"]
        except (RemoteProtocolError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"a change of groups: {error!r}") from None
        if version.counter <= self._version.counter:
            return True
        follows = version.counter == self._version.counter + 1
        self._configs |= {config.group_name: config for config in put}
        for name in delete:
            self._configs.pop(name, None)
        self._version = version
        return follows


def group_fault(config: SubscriptionGroupConfig) -> str | None:
    """Return the error in the numbers of a group's configuration, or None if all numbers are valid."""
    if not 0 <= config.retry_queue_nums <= RETRY_QUEUE_NUMS_MAX:
        return f"retryQueueNums {config.retry_queue_nums} is outside 0..{RETRY_QUEUE_NUMS_MAX}"
    return None


def _within_bounds(config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    """Return a stored group with each invalid number replaced by the nearest valid number.

    A file with an invalid number must not prevent the broker from starting.
    """
    fault = group_fault(config)
    if fault is None:
        return config
    logger.warning("stored group brought within its bounds group=%s fault=%s", config.group_name, fault)
    return replace(config, retry_queue_nums=min(max(config.retry_queue_nums, 0), RETRY_QUEUE_NUMS_MAX))
