"""Topics of one broker with their data version, and the rules on names and creation (pure).

Times are Unix ms and come in as arguments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

import orjson

from routekeeper.broker.store.journal import Change, Changes
from routekeeper.remoting.bounds import QUEUE_NUMS_MAX
from routekeeper.remoting.codes import DEFAULT_TOPIC, PERM_INHERIT, PERM_READ, PERM_WRITE, RETRY_PREFIX
from routekeeper.remoting.errors import RemoteProtocolError
from routekeeper.remoting.lenient import FILE, INT64_MAX, as_int, loads
from routekeeper.remoting.names import CHARACTERS, TOPIC_LENGTH_MAX, NameFault, fault_of
from routekeeper.remoting.route import DataVersion, TopicConfig

logger = logging.getLogger(__name__)

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
#: Bound of the topics that one log line names.
_NAMED_MAX: Final = 100
#: Source: TopicFilterType.
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


class Attribute(NamedTuple):
    """An attribute that a topic can have.

    Attributes:
        values: Values that this broker serves; the first is the default.
        changeable: An existing topic can get or lose it.
    """

    values: tuple[str, ...]
    changeable: bool


#: Attributes by key. Some of RocketMQ's values are missing: those that need batch queues, compaction or
#: tiered storage; and MIXED, which needs a setting that is off by default. Source: TopicAttributes and
#: TopicMessageType of 5.3.3.
ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "message.type": Attribute(("NORMAL", "UNSPECIFIED", "FIFO", "DELAY", "TRANSACTION"), changeable=True),
    "queue.type": Attribute(("SimpleCQ",), changeable=False),
    "cleanup.policy": Attribute(("DELETE",), changeable=False),
    "reserve.time": Attribute(("-1",), changeable=True),
}

_FORBIDDEN: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)
_SYSTEM: Final = _FORBIDDEN | {DEFAULT_TOPIC, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"}
_SYSTEM_PREFIX: Final = "rmq_sys_"


def name_fault(name: str, *, length_max: int = TOPIC_LENGTH_MAX) -> str | None:
    """Return the error in a topic, group or broker name, in Apache's words; None if there is none."""
    match fault_of(name, length_max=length_max):
        case None:
            return None
        case NameFault.BLANK:
            return "The specified topic is blank."
        case NameFault.CHARACTERS:
            return f"The specified topic contains illegal characters, allowing only ^[{CHARACTERS}]+$"
        case NameFault.LENGTH:
            return f"The specified topic is longer than topic max length {length_max}."


def is_sending_forbidden(topic: str) -> bool:
    """Return whether producers must not send to this topic."""
    return topic in _FORBIDDEN


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTopics:
    """Settings that decide which topics exist from the start."""

    cluster_name: str
    broker_name: str
    default_queue_nums: int = 8
    auto_create_topic_enable: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    delay_levels: int = 18

    def configs(self) -> tuple[TopicConfig, ...]:
        """Return the topics of the start, in RocketMQ's order.

        Source: TopicConfigManager's constructor, RocketMQ 4.9.
        """

        def topic(name: str, queues: int, perm: int = PERM_READ | PERM_WRITE) -> TopicConfig:
            return TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)

        all_perms = PERM_INHERIT | PERM_READ | PERM_WRITE
        found = [topic("SELF_TEST_TOPIC", 1)]
        if self.auto_create_topic_enable:
            found.append(topic(DEFAULT_TOPIC, self.default_queue_nums, all_perms))
        found.append(topic("BenchmarkTest", 1024))
        found.append(topic(self.cluster_name, 16, all_perms if self.cluster_topic_enable else PERM_INHERIT))
        found.append(topic(self.broker_name, 1, all_perms if self.broker_topic_enable else PERM_INHERIT))
        found.append(topic("OFFSET_MOVED_EVENT", 1))
        found.append(topic(SCHEDULE_TOPIC, self.delay_levels))
        if self.trace_topic_enable:
            found.append(topic("RMQ_SYS_TRACE_TOPIC", 1))
        found.append(topic(f"{self.cluster_name}_REPLY_TOPIC", 1))
        return tuple(found)


class TopicConfigs:
    """The broker's topic table.

    A topic has a birth offset: the end of the log when the topic was created. Earlier messages of its name
    belong to a deleted topic. The table also has the end of the log when the table was written. If the table
    lacks the topic of an earlier message, that topic was deleted. If it lacks the topic of a later message,
    the topic is restored from the log. If the table may be too old, every topic that it lacks is restored.

    Every change replaces the data version by (same state version, now, counter + 1). Two changes within one
    millisecond therefore still differ, and a version never repeats within one store.

    Attributes:
        known_until: End of the log when the table was written: the table has all topics of earlier messages.
        unknown_from: Log offset from which on a message counts although the table lacks its topic; None if
            no such message counts.
        changes: Changes since the file or its journal was last written.
        is_journaled: The loaded file has a journal.
    """

    def __init__(self, start: StartTopics) -> None:
        self._start = {config.topic_name: config for config in start.configs()}
        self._configs = dict(self._start)
        self._births: dict[str, int] = {}
        self._deaths: dict[str, int] = {}  # by topic: end of the log when it was deleted
        self.known_until = 0
        self._lacks_changes = False
        self.changes = Changes()
        self.is_journaled = False
        self.unknown_from: int | None = None
        self._log_end: Callable[[], int] = lambda: 0
        self._version = DataVersion()
        self._reserved = _SYSTEM | {
            start.cluster_name,
            start.broker_name,
            f"{start.cluster_name}_REPLY_TOPIC",
        }

    @property
    def data_version(self) -> DataVersion:
        return self._version

    def __len__(self) -> int:
        return len(self._configs)

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(self._configs.values())

    def __contains__(self, topic: str) -> bool:
        return topic in self._configs

    def get(self, topic: str) -> TopicConfig | None:
        return self._configs.get(topic)

    def born_at(self, topic: str) -> int | None:
        """Return the log offset from which on messages of a topic count; None if none of them does."""
        if topic in self._configs:
            return self._births.get(topic, 0)
        if self.unknown_from is None:
            return None
        return max(self.unknown_from, self._deaths.get(topic, 0))

    def expect_unknown(self, *, trusted: bool) -> None:
        """Let messages in the log count for topics that the table lacks, until :meth:`follow_log`.

        Args:
            trusted: The table is older than the log but undamaged, so topics that it lacked when it was
                written were deleted.
        """
        self.unknown_from = self.known_until if trusted else 0

    def follow_log(self, log_end: Callable[[], int], queue_counts: Mapping[str, int], *, now_ms: int) -> bool:
        """Use this log for birth offsets from now on; return whether the table was corrected.

        A power cut may have shortened the log. A birth offset behind its end is then set to its end.

        Args:
            queue_counts: Topics that have messages, with the number of queues that hold them.
        """
        self._log_end = log_end
        births = {topic: min(born, log_end()) for topic, born in self._births.items()}
        corrected = births != self._births or self.known_until > log_end()
        self._births = births
        if self.unknown_from is not None:
            self._take_found(queue_counts, now_ms=now_ms)
            self.unknown_from = None
            corrected = True
        self._deaths.clear()
        return corrected

    def _take_found(self, queue_counts: Mapping[str, int], *, now_ms: int) -> None:
        """Add topics and queues that the log has and the table lacks."""
        found, widened = [], []
        for topic, needed in queue_counts.items():
            count = min(needed, QUEUE_NUMS_MAX)
            config = self._configs.get(topic)
            if config is None:
                self._births[topic] = min(self.born_at(topic) or 0, self._log_end())
                config = TopicConfig(topic_name=topic, read_queue_nums=0, write_queue_nums=0)
                found.append(topic)
            elif topic not in self._start and config.read_queue_nums < count:
                widened.append(topic)
            else:
                continue
            self._configs[topic] = replace(
                config,
                read_queue_nums=max(config.read_queue_nums, count),
                write_queue_nums=max(config.write_queue_nums, count),
            )
        if found:
            logger.warning("topics found in the log count=%s topics=%s", len(found), _names(found))
        if widened:
            logger.warning("queues found in the log count=%s topics=%s", len(widened), _names(widened))
        if found or widened:
            self._bump(now_ms, put=(*found, *widened))

    def is_older_than(self, counter: int) -> bool:
        """Return whether this table is older than one with this version counter, which was on disk.

        If it is older, it continues from that counter, so that no version is used twice.
        """
        older = self._version.counter < counter
        if older:
            known = self._version
            self._version = DataVersion(
                state_version=known.state_version, timestamp=known.timestamp, counter=counter
            )
        return older

    def is_system(self, topic: str) -> bool:
        """Return whether requests 17 and 215 must not change this topic."""
        return topic in self._reserved or topic.startswith(_SYSTEM_PREFIX)

    def system_topics(self) -> tuple[str, ...]:
        return tuple(name for name in self._configs if self.is_system(name))

    def begin(self, *, now_ms: int) -> None:
        """Set the version of a new table from the time, so that no two first starts share a version."""
        if self._version == DataVersion():
            self._version = DataVersion(timestamp=now_ms)

    def put(self, config: TopicConfig, *, now_ms: int) -> bool:
        """Create or replace a topic; return whether anything changed."""
        if self._configs.get(config.topic_name) == config:
            return False
        if config.topic_name not in self._configs:
            self._births[config.topic_name] = self._log_end()
        self._configs[config.topic_name] = config
        self._bump(now_ms, put=(config.topic_name,))
        return True

    def delete(self, topic: str, *, now_ms: int) -> bool:
        """Delete a topic; return whether it existed."""
        if self._configs.pop(topic, None) is None:
            return False
        self._births.pop(topic, None)
        self._bump(now_ms, delete=(topic,))
        return True

    def create_for_send(
        self,
        topic: str,
        *,
        default_topic: str,
        queue_nums: int,
        sys_flag: int,
        auto_create: bool,
        now_ms: int,
    ) -> TopicConfig | None:
        """Create the topic of a send from the template that the send names; None if that is not allowed.

        The number of queues is the smaller of the requested number and the template's. The topic has the
        template's permissions without INHERIT.

        Source: TopicConfigManager.createTopicInSendMessageMethod.
        """
        template = self._configs.get(default_topic)
        if template is None:
            return None
        perm = template.perm
        if default_topic == DEFAULT_TOPIC and not auto_create:
            perm = PERM_READ | PERM_WRITE
        if not perm & PERM_INHERIT:
            return None
        queues = max(0, min(queue_nums, template.write_queue_nums))
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm & ~PERM_INHERIT,
            topic_filter_type=template.topic_filter_type,
            topic_sys_flag=sys_flag,
        )
        self.put(config, now_ms=now_ms)
        return config

    def create_for_group(self, topic: str, *, queue_nums: int, perm: int, sys_flag: int, now_ms: int) -> bool:
        """Create a retry or dead-letter topic if it is missing; return whether it was missing."""
        if topic in self._configs:
            return False
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=perm,
            topic_sys_flag=sys_flag,
        )
        return self.put(config, now_ms=now_ms)

    def restate(self, *, now_ms: int) -> None:
        """Raise the version although no single topic changed, because a fact about all of them did.

        Nameservers read the topics of a registration only if its version is a new one.
        """
        self._bump(now_ms)

    def set_order(self, ordered: Iterable[str], *, now_ms: int) -> bool:
        """Mark topics as ordered, as the answer to a registration requests (as in 5.x, never unmark one)."""
        changed = []
        for topic in ordered:
            config = self._configs.get(topic)
            if config is not None and not config.order:
                self._configs[topic] = replace(config, order=True)
                changed.append(topic)
        if changed:
            self._bump(now_ms, put=changed)
        return bool(changed)

    def to_json(self) -> bytes:
        """Return the answer to request 21."""
        return _encode(self._configs.values(), self._version)

    def snapshot(self, *, journaled: bool = False) -> Callable[[], bytes]:
        """Return a function that encodes the present ``topics.json``, at any later time and in any thread."""
        configs, version, births = tuple(self._configs.values()), self._version, dict(self._births)
        log_end = self._log_end()
        more: dict[str, object] = {"bornAt": births, "logEnd": log_end}
        if journaled:
            more["journal"] = True
        return lambda: _encode(configs, version, **more)

    def load(self, text: str) -> None:
        """Load a stored ``topics.json``; topics of the start that it lacks stay.

        Raises:
            ValueError: If it cannot be read; then nothing was changed.
        """
        try:
            members = loads(text, FILE)
            if type(members) is not dict:
                raise ValueError("topics.json is no object")
            version = DataVersion.from_json(members.get("dataVersion"))
            born: Mapping[str, Any] = members.get("bornAt") or {}
            table: Mapping[str, Any] = members.get("topicConfigTable") or {}
            stored = {
                name: _within_bounds(TopicConfig.from_json(value, topic_name=name))
                for name, value in table.items()
            }
            births = {name: as_int(value, "bornAt", limit=INT64_MAX) for name, value in born.items()}
            known_until = as_int(members.get("logEnd") or 0, "logEnd", limit=INT64_MAX)
            journaled = members.get("journal") is True
        except (RemoteProtocolError, AttributeError) as error:
            raise ValueError(f"topics.json: {error}") from None
        if DEFAULT_TOPIC not in self._start:
            # The setting was switched off: clients must not see a template that this broker no longer uses.
            stored.pop(DEFAULT_TOPIC, None)
        self._configs = self._start | stored
        self._births = {name: offset for name, offset in births.items() if name in self._configs}
        self.known_until = known_until
        self._version = version
        self.is_journaled = journaled

    def apply(self, change: Mapping[str, Any]) -> bool:
        """Apply a change of the journal, unless the table has it; return False if an earlier one is missing.

        Raises:
            ValueError: If it is no change; then nothing was changed.
        """
        try:
            version = DataVersion.from_json(change.get("dataVersion"))
            put = [_within_bounds(TopicConfig.from_json(value)) for value in change["put"]]
            births = {
                name: as_int(value, "bornAt", limit=INT64_MAX) for name, value in change["bornAt"].items()
            }
            log_end = as_int(change["logEnd"], "logEnd", limit=INT64_MAX)
            delete: list[str] = change["delete"]
        except (RemoteProtocolError, AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"a change of topics: {error!r}") from None
        if version.counter <= self._version.counter:
            return True
        follows = version.counter == self._version.counter + 1
        for config in put:
            if config.topic_name in self._start or config.topic_name != DEFAULT_TOPIC:
                self._configs[config.topic_name] = config
                self._births[config.topic_name] = births.get(config.topic_name, 0)
        for name in delete:
            self._configs.pop(name, None)
            self._births.pop(name, None)
            self._deaths[name] = log_end
        self._lacks_changes |= not follows
        if not self._lacks_changes:
            self.known_until = log_end
        self._version = version
        return follows

    def _bump(self, now_ms: int, *, put: Sequence[str] = (), delete: Sequence[str] = ()) -> None:
        self._version = self._version.advanced(now_ms=now_ms)
        births = {name: self._births.get(name, 0) for name in put}
        more = {"bornAt": births, "logEnd": self._log_end()}
        configs = tuple(self._configs[name] for name in put)
        self.changes.note(Change(self._version, configs, tuple(delete), more))


def _encode(configs: Iterable[TopicConfig], version: DataVersion, **more: object) -> bytes:
    table = {config.topic_name: config.to_json() for config in configs}
    members = {"dataVersion": version.to_json(), "topicConfigTable": table, **more}
    return orjson.dumps(members, option=orjson.OPT_INDENT_2)


def _within_bounds(config: TopicConfig) -> TopicConfig:
    """Return a stored topic with its numbers within bounds, instead of refusing the start."""
    read = min(max(config.read_queue_nums, 0), QUEUE_NUMS_MAX)
    write = min(max(config.write_queue_nums, 0), QUEUE_NUMS_MAX)
    if (read, write) == (config.read_queue_nums, config.write_queue_nums):
        return config
    logger.warning(
        "queue counts of a stored topic brought within 0..%s topic=%s read=%s write=%s",
        QUEUE_NUMS_MAX,
        config.topic_name,
        config.read_queue_nums,
        config.write_queue_nums,
    )
    return replace(config, read_queue_nums=read, write_queue_nums=write)


def _names(topics: Sequence[str]) -> str:
    more = f" and {len(topics) - _NAMED_MAX} more" if len(topics) > _NAMED_MAX else ""
    return ",".join(topics[:_NAMED_MAX]) + more


def retry_topic(group: str) -> str:
    """Return the topic of a group's failed messages."""
    return RETRY_PREFIX + group


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChange:
    """The change that request 17 requests.

    ``attributes`` is 5.x's edit text: ``+key=value,-key``.
    """

    topic_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: str = ""

    def apply_to(self, old: TopicConfig | None) -> TopicConfig:
        """Return the topic after the change.

        Raises:
            ValueError: If the attribute text is invalid, or there is no such type of filter.
        """
        filter_type = self.topic_filter_type or FILTER_TYPES[0]
        if filter_type not in FILTER_TYPES:
            raise ValueError(f"topicFilterType {filter_type[:40]!r}: allowed are {', '.join(FILTER_TYPES)}")
        return TopicConfig(
            topic_name=self.topic_name,
            read_queue_nums=self.read_queue_nums,
            write_queue_nums=self.write_queue_nums,
            perm=self.perm,
            topic_filter_type=filter_type,
            topic_sys_flag=self.topic_sys_flag,
            order=self.order,
            attributes=edit_attributes(old.attributes if old else None, self.attributes),
        )

    @classmethod
    def of(cls, config: TopicConfig) -> Self:
        """Make the change to exactly this topic (request 18 has whole configurations)."""
        return cls(
            topic_name=config.topic_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=",".join(_edit(key, value) for key, value in config.attributes.items()),
        )


def _edit(key: str, value: str) -> str:
    """Return an attribute of request 18 as an edit: RocketMQ's tools put the sign before the key."""
    if key.startswith("-") and not value:
        return key
    return f"{key}={value}" if key.startswith(("+", "-")) else f"+{key}={value}"


def edit_attributes(old: Mapping[str, str] | None, edits: str) -> dict[str, str]:
    """Apply ``+key=value,-key`` to attributes.

    An unknown key of a topic, for example from a former release, can be removed.

    Args:
        old: None if the topic is new.

    Raises:
        ValueError: If an edit is malformed, names a key twice, or requests a value that is not served.

    Source: AttributeParser and AttributeUtil of 5.3.3.
    """
    found = dict(old or {})
    edited: set[str] = set()
    for edit in filter(None, (part.strip() for part in edits.split(","))):
        key, equals, value = edit[1:].partition("=")
        if not key or edit[0] not in "+-" or (edit[0] == "+") != bool(equals):
            raise ValueError(f"attribute edit {edit[:40]!r} is neither +key=value nor -key")
        if key in edited:
            raise ValueError(f"attribute {key[:40]} is given twice")
        edited.add(key)
        attribute = ATTRIBUTES.get(key)
        if edit[0] == "-":
            if key not in found:
                raise ValueError(f"the topic has no such attribute to remove: {key[:40]}")
            if attribute is not None and not attribute.changeable:
                raise ValueError(f"attribute {key} cannot be changed once the topic exists")
            del found[key]
            continue
        if attribute is None:
            raise ValueError(f"attribute {key[:40]!r}: allowed are {', '.join(ATTRIBUTES)}")
        if value not in attribute.values:
            raise ValueError(f"attribute {key} {value[:40]!r}: allowed are {', '.join(attribute.values)}")
        if old is not None and not attribute.changeable and old.get(key) != value:
            raise ValueError(f"attribute {key} cannot be changed once the topic exists")
        found[key] = value
    return found
