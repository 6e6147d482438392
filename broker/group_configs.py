"""Consumer group configurations with their data version (pure): ``subscriptionGroup.json``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from remoting.bodies import SubscriptionGroupConfig, SubscriptionGroupTable
from remoting.errors import RemoteProtocolError
from remoting.route import DataVersion

#: Groups that exist without creation. Source: SubscriptionGroupManager.init.
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
    """The broker's group configurations; changes bump the data version."""

    def __init__(self) -> None:
        self._configs = {name: SubscriptionGroupConfig(group_name=name) for name in PREDEFINED}
        self._version = DataVersion()

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(self._configs.values())

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        return self._configs.get(group)

    def put(self, config: SubscriptionGroupConfig, *, now_ms: int) -> bool:
        """Create or replace a group; return whether anything changed."""
        if self._configs.get(config.group_name) == config:
            return False
        self._configs[config.group_name] = config
        self._bump(now_ms)
        return True

    def delete(self, group: str, *, now_ms: int) -> bool:
        if self._configs.pop(group, None) is None:
            return False
        self._bump(now_ms)
        return True

    def to_json(self) -> bytes:
        """Return the content of the file; also the answer to request 201."""
        return self.snapshot()()

    def snapshot(self) -> Callable[[], bytes]:
        """Return what encodes the table as it is now, at any later time and in any thread."""
        return SubscriptionGroupTable(data_version=self._version, groups=dict(self._configs)).encode

    def load(self, text: str) -> None:
        """Take over a stored file; predefined groups that it lacks stay.

        Raises:
            ValueError: If it cannot be read; nothing has changed then.
        """
        try:
            stored = SubscriptionGroupTable.decode(text.encode())
        except RemoteProtocolError as error:
            raise ValueError(f"subscriptionGroup.json: {error}") from None
        self._configs |= stored.groups
        self._version = stored.data_version

    def _bump(self, now_ms: int) -> None:
        self._version = self._version.advanced(now_ms=now_ms)
