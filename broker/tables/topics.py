"""Topics of one broker with their data version, and the rules on names and creation.

This module accesses no file. It only writes log lines. It reads no clock, because callers pass the current
time in Unix ms.
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
#: Largest number of topic names in one log line.
_NAMED_MAX: Final = 100
#: Types of topic filters. Source: TopicFilterType.
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


class Attribute(NamedTuple):
    """An attribute that a topic can have.

    Attributes:
        values: Values that this broker supports. The first value is the default.
        changeable: True if this attribute can be set or removed after the topic was created.
    """

    values: tuple[str, ...]
    changeable: bool


#: Attributes by key, with the values that this broker supports. Some of RocketMQ's values are missing: values
#: that need batch queues, compaction or tiered storage. MIXED is missing too, because it needs a setting that
#: is off by default. Source: TopicAttributes and TopicMessageType of 5.3.3.
ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "message.type": Attribute(("NORMAL", "UNSPECIFIED", "FIFO", "DELAY", "TRANSACTION"), changeable=True),
    "queue.type": Attribute(("SimpleCQ",), changeable=False),
    "cleanup.policy": Attribute(("DELETE",), changeable=False),
    "reserve.time": Attribute(("-1",), changeable=True),
}

#: Largest number of a topic's attributes in one request, and largest length in characters of a text that
#: edits them. RocketMQ's topics have fewer than ten attributes. Reading very many attributes would delay all
#: other requests.
ATTRIBUTES_MAX: Final = 64
EDITS_LENGTH_MAX: Final = 4096

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
    """Return the error in a topic, group or broker name, in RocketMQ's words, or None if there is none."""
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
    """Return True if producers must not send to this topic."""
    return topic in _FORBIDDEN


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTopics:
    """Settings that decide which topics a broker creates at its start."""

    cluster_name: str
    broker_name: str
    default_queue_nums: int = 8
    auto_create_topic_enable: bool = True
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    delay_levels: int = 18

    def configs(self) -> tuple[TopicConfig, ...]:
        """Return the topics that a broker creates at its start, in RocketMQ's order.

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

    Each topic has a birth offset: the end of the log when the topic was created. If the log has messages with
    this topic's name below the birth offset, they belong to a deleted topic of the same name.

    The stored table contains the end of the log at the time of writing. A message in the log may belong to a
    topic that the table lacks:

    - If the message is older than the table, the topic was deleted.
    - If the message is newer than the table, the topic is restored from the log.
    - If the table itself cannot be trusted (:meth:`expect_unknown`), every topic that it lacks is restored.

    Every change replaces the data version by (same state version, now, counter + 1). Two changes within one
    millisecond therefore have different versions, and one store never uses a version twice.

    Attributes:
        known_until: End of the log when the table was written. Topics of messages before this offset are in
            the table, unless they were deleted.
        unknown_from: Log offset from which on messages are valid although the table lacks their topic. None
            if all messages of missing topics are invalid.
        changes: Changes that neither the table's file nor its journal contains yet.
        is_journaled: True if the file from which this table was loaded has a journal.
    """

    def __init__(self, start: StartTopics) -> None:
        self._start = {config.topic_name: config for config in start.configs()}
        self._configs = dict(self._start)
        self._births: dict[str, int] = {}
        self._deaths: dict[str, int] = {}  # for each deleted topic: end of the log at the deletion
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
        """Return the log offset at which a topic's valid messages begin, or None if no message is valid."""
        if topic in self._configs:
            return self._births.get(topic, 0)
        if self.unknown_from is None:
            return None
        return max(self.unknown_from, self._deaths.get(topic, 0))

    def expect_unknown(self, *, trusted: bool) -> None:
        """Treat messages as valid although the table lacks their topic, until :meth:`follow_log` runs.

        Args:
            trusted: True if the table is undamaged and merely older than the log. In this case, a topic that
                is missing in the table was deleted before the table was written. Messages of such a topic
                that are older than the table stay invalid.
        """
        self.unknown_from = self.known_until if trusted else 0

    def follow_log(self, log_end: Callable[[], int], queue_counts: Mapping[str, int], *, now_ms: int) -> bool:
        """Use the log's end as birth offset of new topics. Return True if the table was corrected.

        A power cut may have shortened the log. Birth offsets beyond the log's end are then lowered to that
        end.

        Args:
            log_end: Function that returns the current end of the log.
            queue_counts: Topics that have messages in the log, each with the number of queues that it needs.
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
        """Add topics and queues that have messages in the log but are missing in the table."""
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
        """Return True if this broker has already stored a table with a higher counter than this table's.

        In that case, this table takes the higher counter, so that no version is used twice.

        Args:
            counter: Counter of the newest table known to be on disk.
        """
        older = self._version.counter < counter
        if older:
            known = self._version
            self._version = DataVersion(
                state_version=known.state_version, timestamp=known.timestamp, counter=counter
            )
        return older

    def is_system(self, topic: str) -> bool:
        """Return True if requests 17 (change) and 215 (delete) must not change this topic."""
        return topic in self._reserved or topic.startswith(_SYSTEM_PREFIX)

    def system_topics(self) -> tuple[str, ...]:
        return tuple(name for name in self._configs if self.is_system(name))

    def begin(self, *, now_ms: int) -> None:
        """Set a new table's version to the current time. New brokers would otherwise have equal versions."""
        if self._version == DataVersion():
            self._version = DataVersion(timestamp=now_ms)

    def put(self, config: TopicConfig, *, now_ms: int) -> bool:
        """Create or replace a topic. Return True if the table changed."""
        if self._configs.get(config.topic_name) == config:
            return False
        if config.topic_name not in self._configs:
            self._births[config.topic_name] = self._log_end()
        self._configs[config.topic_name] = config
        self._bump(now_ms, put=(config.topic_name,))
        return True

    def delete(self, topic: str, *, now_ms: int) -> bool:
        """Delete a topic. Return True if it existed."""
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
        """Create the topic of a send from a template topic. Return None if the topic must not be created.

        The send names the template. The number of queues is the smaller of the requested number and the
        template's number. The new topic has the template's permissions, except for INHERIT.

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
        """Create a retry or dead-letter topic if it is missing. Return True if it was created."""
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
        """Increment the table's version, so that nameservers read the next registration completely.

        Nameservers read the topics of a registration only if the version is new to them. Here no topic
        changed, but the broker's permission may have changed.
        """
        self._bump(now_ms)

    def set_order(self, ordered: Iterable[str], *, now_ms: int) -> bool:
        """Mark topics as ordered, as a nameserver requests in its answer to a registration.

        As in RocketMQ 5.x, the mark of a topic is never removed.

        Returns:
            True if at least one topic is newly marked.
        """
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
        """Return the encoded table, which answers request 21 (GET_ALL_TOPIC_CONFIG)."""
        return _encode(self._configs.values(), self._version)

    def snapshot(self, *, journaled: bool = False) -> Callable[[], bytes]:
        """Return a function that encodes the current ``topics.json``.

        The function may run later and in any thread.
        """
        configs, version, births = tuple(self._configs.values()), self._version, dict(self._births)
        log_end = self._log_end()
        more: dict[str, object] = {"bornAt": births, "logEnd": log_end}
        if journaled:
            more["journal"] = True
        return lambda: _encode(configs, version, **more)

    def load(self, text: str) -> None:
        """Load a stored ``topics.json``.

        Topics that the broker creates at its start stay in the table even if the file lacks them.

        Raises:
            ValueError: If the file cannot be read. The table is then unchanged.
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
            # The setting autoCreateTopicEnable was switched off, so this broker no longer uses the template
            # topic. Clients must not see it.
            stored.pop(DEFAULT_TOPIC, None)
        self._configs = self._start | stored
        self._births = {name: offset for name, offset in births.items() if name in self._configs}
        self.known_until = known_until
        self._version = version
        self.is_journaled = journaled

    def apply(self, change: Mapping[str, Any]) -> bool:
        """Apply a change from the journal, unless the table already contains it.

        Returns:
            False if changes between the table's version and this change are missing, else True.

        Raises:
            ValueError: If the JSON is not a change of topics. The table is then unchanged.
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
    """Return a stored topic with each invalid number replaced by the nearest valid number.

    A file with an invalid number must not prevent the broker from starting.
    """
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
    """Return a group's retry topic. It stores messages that the group failed to consume."""
    return RETRY_PREFIX + group


class TopicChange(NamedTuple):
    """The new topic configuration that request 17 (UPDATE_AND_CREATE_TOPIC) contains.

    Attributes:
        config: The configuration. Its attributes are ignored.
        edits: Changes of the attributes in RocketMQ 5.x's form: ``+key=value`` sets, ``-key`` removes.
    """

    config: TopicConfig
    edits: str

    def apply_to(self, old: TopicConfig | None) -> TopicConfig:
        """Return a topic's configuration after this change; ``old`` is None if the change creates the topic.

        Raises:
            ValueError: If the attribute text is invalid, or the filter type is unknown.
        """
        filter_type = self.config.topic_filter_type or FILTER_TYPES[0]
        if filter_type not in FILTER_TYPES:
            raise ValueError(f"topicFilterType {filter_type[:40]!r}: allowed are {', '.join(FILTER_TYPES)}")
        attributes = edit_attributes(old.attributes if old else None, self.edits)
        return replace(self.config, topic_filter_type=filter_type, attributes=attributes)

    @classmethod
    def of(cls, config: TopicConfig) -> Self:
        """Return a change that produces exactly this configuration.

        Request 18 (UPDATE_AND_CREATE_TOPIC_LIST) contains whole configurations instead of changes.
        """
        return cls(config, ",".join(_edit(key, value) for key, value in config.attributes.items()))


def _edit(key: str, value: str) -> str:
    """Return an attribute from request 18 as an edit text: ``+key=value`` or ``-key``.

    RocketMQ's tools already write the sign before the key.
    """
    if key.startswith("-") and not value:
        return key
    return f"{key}={value}" if key.startswith(("+", "-")) else f"+{key}={value}"


def edit_attributes(old: Mapping[str, str] | None, edits: str) -> dict[str, str]:
    """Apply an edit text ``+key=value,-key`` to a topic's attributes.

    An edit may also remove a key that this release does not know, if the topic has the key. The topic may
    have such a key from another release.

    Args:
        old: The topic's attributes, or None if the topic is new.

    Raises:
        ValueError: If the text is too long, or if an edit is not allowed. An edit must not be malformed or
            repeat a key. It must not remove a key that the topic lacks, set an unsupported value, or change
            an attribute that must not change.

    Source: AttributeParser and AttributeUtil of 5.3.3.
    """
    if len(edits) > EDITS_LENGTH_MAX:
        raise ValueError(f"attributes have {len(edits)} characters, allowed are {EDITS_LENGTH_MAX}")
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
