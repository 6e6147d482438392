"""Settings of one broker process, with RocketMQ's names and defaults, and functions that check them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from routekeeper.broker.errors import SettingError
from routekeeper.broker.store.message_index import FILE_MESSAGES
from routekeeper.broker.store.retention import parse_hours
from routekeeper.remoting.acl.addresses import AddressError, parse_networks
from routekeeper.remoting.address_server import url_of
from routekeeper.remoting.addresses import FORM, address_fault, split_address
from routekeeper.remoting.bounds import ADDR_FORM, is_address
from routekeeper.remoting.errors import LocalProtocolError
from routekeeper.remoting.logs import LEVELS, STYLES
from routekeeper.remoting.names import CHARACTERS, TOPIC_LENGTH_MAX
from routekeeper.remoting.tls_settings import PortTls, TlsFlags, TlsSettingError, http_tls

#: Bounds of ``registerNameServerPeriod`` in ms. Source: BrokerController.start, RocketMQ 4.9 and 5.3.
REGISTER_PERIOD_MIN_MS: Final = 10_000
REGISTER_PERIOD_MAX_MS: Final = 60_000

_UNITS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_FLUSH_TYPES: Final = ("ASYNC_FLUSH", "SYNC_FLUSH")
_MASTER: Final = "ASYNC_MASTER"
#: Longest delay in ms, and largest number of delay levels. The number needs a bound, because the broker polls
#: one queue for each delay level.
_DELAY_MAX_MS: Final = 366 * 86_400_000
_DELAY_LEVELS_MAX: Final = 1024
#: Largest number of nameservers. The number needs a bound, because the broker calls every nameserver after a
#: change of the list.
NAMESRV_ADDRS_MAX: Final = 64
_DAMAGE_POLICIES: Final = ("refuse", "skip")

#: Ranges of numeric settings.
RANGES: Final[Mapping[str, tuple[int, int]]] = {
    "listenPort": (0, 65_535),
    "advertisePort": (0, 65_535),
    "updateNameServerAddrPeriod": (1000, 86_400_000),
    "fetchNamesrvAddrInterval": (1000, 86_400_000),
    "haListenPort": (0, 65_535),
    "brokerPermission": (0, 7),
    "timerDivisor": (1, 1000),
    "registerBrokerTimeoutMills": (1, 600_000),
    "defaultTopicQueueNums": (1, 1024),
    "maxMessageSize": (1, 15 * 1024 * 1024),
    "maxTransferCountOnMessageInMemory": (1, 10_000),
    "maxTransferBytesOnMessageInMemory": (1, 8 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": (20, 2**31 - 1),
    "indexFileMessages": (1, 1_000_000),
    "flushIntervalCommitLog": (1, 600_000),
    "syncFlushTimeout": (1, 600_000),
    "flushConsumerOffsetInterval": (1, 600_000),
    "flushDelayOffsetInterval": (1, 600_000),
    "shortPollingTimeMills": (1, 600_000),
    "fileReservedTime": (1, 10_000_000),
    "diskMaxUsedSpaceRatio": (10, 95),
    "diskSpaceCleanForciblyRatio": (30, 85),
    "maxConnections": (1, 10_000_000),
    "maxTopics": (1, 90_000),
    "maxQueues": (1, 10_000_000),
    "maxSubscriptionGroups": (1, 90_000),
    "maxConsumerOffsetBytes": (1, 14 * 1024 * 1024),
    "maxClientBytes": (1, 1024**3),
}

# _BLANKS are removed around a value. _WHOLE and _DECIMAL use [0-9], because \d accepts digits of all scripts.
_BLANKS: Final = " \t\r\n\f"
_NAME: Final = re.compile(rf"[.{CHARACTERS}]{{1,{TOPIC_LENGTH_MAX}}}")
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,18}(\.[0-9]{0,18})?")


def _key(name: str, *, live: bool = False, secret: bool = False) -> dict[str, Any]:
    """Return the metadata of a setting: its key in RocketMQ's file, and two flags.

    ``live``: request 25 (UPDATE_BROKER_CONFIG) may change the setting at run time. ``secret``: the broker
    never shows the value.
    """
    return {"key": name, "live": live, "secret": secret}


def _setting(key: str, default: Any, *, live: bool = False, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata=_key(key, live=live, secret=secret))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker process, named after RocketMQ's BrokerConfig and MessageStoreConfig.

    RocketMQ does not have these settings:

    - ``bind_host``, ``advertise_port``, ``http``, ``rpc_hook``;
    - ``index_file_messages``, ``recover_damaged_log``;
    - ``acl_file``, ``admin_networks``, ``namesrv_acl_file``;
    - ``log_level`` and ``log_format``, the settings of the program's log;
    - the settings whose names begin with ``tls_`` or ``http_tls_``, and the limits that ``mqbroker --help``
      explains;
    - ``timer_divisor``, which divides the registration period and also the documented bounds of that period.
      With it, a benchmark can shorten all timers by the same factor, in both modes of the nameserver.
    """

    broker_name: str = _setting("brokerName", "DEFAULT_BROKER")
    cluster_name: str = _setting("brokerClusterName", "DefaultCluster")
    broker_id: int = _setting("brokerId", 0)
    namesrv_addr: str = _setting("namesrvAddr", "", live=True)
    look_up_namesrv: bool = _setting("fetchNameSrvAddrByDnsLookup", False, live=True)
    look_up_period_ms: int = _setting("updateNameServerAddrPeriod", 120_000, live=True)
    fetch_namesrv: bool = _setting("fetchNamesrvAddrByAddressServer", False, live=True)
    fetch_period_ms: int = _setting("fetchNamesrvAddrInterval", 10_000, live=True)
    namesrv_domain: str = _setting("rocketmq.namesrv.domain", "jmenv.tbsite.net")
    namesrv_domain_subgroup: str = _setting("rocketmq.namesrv.domain.subgroup", "nsaddr")
    listen_port: int = _setting("listenPort", 10911)
    bind_host: str = _setting("bindAddress", "127.0.0.1")
    broker_ip: str = _setting("brokerIP1", "")
    ha_ip: str = _setting("brokerIP2", "")
    advertise_port: int = _setting("advertisePort", 0)
    ha_listen_port: int = _setting("haListenPort", 0)
    store_path: str = _setting("storePathRootDir", "")
    log_path: str = _setting("storePathCommitLog", "")
    broker_role: str = _setting("brokerRole", _MASTER)
    acl_enable: bool = _setting("aclEnable", False)
    acl_file: str = _setting("aclFile", "")
    rocketmq_home: str = _setting("rocketmqHome", "")
    admin_networks: str = _setting("adminNetworks", "")
    namesrv_acl_file: str = _setting("namesrvAclFile", "")
    broker_permission: int = _setting("brokerPermission", 6, live=True)

    register_period_ms: int = _setting("registerNameServerPeriod", 30_000)
    register_timeout_ms: int = _setting("registerBrokerTimeoutMills", 6000)
    timer_divisor: float = _setting("timerDivisor", 1.0)
    force_register: bool = _setting("forceRegister", True, live=True)
    compressed_register: bool = _setting("compressedRegister", False, live=True)

    default_topic_queue_nums: int = _setting("defaultTopicQueueNums", 8)
    auto_create_topic_enable: bool = _setting("autoCreateTopicEnable", True, live=True)
    auto_create_subscription_group: bool = _setting("autoCreateSubscriptionGroup", True, live=True)
    cluster_topic_enable: bool = _setting("clusterTopicEnable", True)
    broker_topic_enable: bool = _setting("brokerTopicEnable", True)
    trace_topic_enable: bool = _setting("traceTopicEnable", False)
    region_id: str = _setting("regionId", "DefaultRegion")
    trace_on: bool = _setting("traceOn", True, live=True)
    reject_transaction_message: bool = _setting("rejectTransactionMessage", True)
    enable_property_filter: bool = _setting("enablePropertyFilter", False)
    notify_consumer_ids_changed_enable: bool = _setting("notifyConsumerIdsChangedEnable", True, live=True)

    long_polling_enable: bool = _setting("longPollingEnable", True, live=True)
    short_polling_ms: int = _setting("shortPollingTimeMills", 1000, live=True)
    transfer_count_max: int = _setting("maxTransferCountOnMessageInMemory", 32, live=True)
    transfer_bytes_max: int = _setting("maxTransferBytesOnMessageInMemory", 262_144, live=True)
    message_size_max: int = _setting("maxMessageSize", 4_194_304, live=True)
    message_delay_level: str = _setting(
        "messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )

    log_file_size: int = _setting("mappedFileSizeCommitLog", 1024 * 1024 * 1024)
    queue_file_size: int = _setting("mappedFileSizeConsumeQueue", 300_000 * 20)
    index_file_messages: int = _setting("indexFileMessages", FILE_MESSAGES)
    flush_disk_type: str = _setting("flushDiskType", "ASYNC_FLUSH")
    flush_interval_ms: int = _setting("flushIntervalCommitLog", 500)
    sync_flush_timeout_ms: int = _setting("syncFlushTimeout", 5000)
    flush_offset_interval_ms: int = _setting("flushConsumerOffsetInterval", 5000)
    flush_delay_offset_interval_ms: int = _setting("flushDelayOffsetInterval", 10_000)
    file_reserved_h: int = _setting("fileReservedTime", 72, live=True)
    delete_when: str = _setting("deleteWhen", "04", live=True)
    disk_used_max_percent: int = _setting("diskMaxUsedSpaceRatio", 75, live=True)
    disk_clean_forcibly_percent: int = _setting("diskSpaceCleanForciblyRatio", 85, live=True)
    clean_file_forcibly: bool = _setting("cleanFileForciblyEnable", True, live=True)
    recover_damaged_log: str = _setting("recoverDamagedLog", "refuse")

    connections_max: int = _setting("maxConnections", 16_384)
    topics_max: int = _setting("maxTopics", 30_000, live=True)
    queues_max: int = _setting("maxQueues", 200_000)
    groups_max: int = _setting("maxSubscriptionGroups", 16_000, live=True)
    offset_bytes_max: int = _setting("maxConsumerOffsetBytes", 8 * 1024 * 1024, live=True)
    client_bytes_max: int = _setting("maxClientBytes", 64 * 1024 * 1024)
    http: str = _setting("httpListen", "off")
    log_level: str = _setting("logLevel", "INFO", live=True)
    log_format: str = _setting("logFormat", "text")
    http_tls_cert: str = _setting("httpTlsCert", "")
    http_tls_key: str = _setting("httpTlsKey", "")
    http_tls_ca: str = _setting("httpTlsCa", "")
    tls_mode: str = _setting("tlsMode", "")
    tls_cert: str = _setting("tlsCert", "")
    tls_key: str = _setting("tlsKey", "")
    tls_ca: str = _setting("tlsCa", "")
    tls_client_auth: str = _setting("tlsClientAuth", "")
    tls_config: str = _setting("tlsConfig", "")

    # TLS of connections to nameservers, see broker.server.namesrv_tls. Source: TlsSystemConfig, RocketMQ
    # 4.9 and 5.3.
    tls_enable: str = _setting("tls.enable", "")
    tls_client_cert: str = _setting("tls.client.certPath", "")
    tls_client_key: str = _setting("tls.client.keyPath", "")
    tls_client_key_password: str = _setting("tls.client.keyPassword", "", secret=True)
    tls_client_ca: str = _setting("tls.client.trustCertPath", "")
    tls_client_auth_server: str = _setting("tls.client.authServer", "")
    rpc_hook: str = _setting("rpcHook", "")

    @property
    def advertise_host(self) -> str:
        """Host of the address that nameservers give to clients. The host is also part of message ids."""
        return self.broker_ip or self.bind_host

    @property
    def namesrv_addrs(self) -> tuple[str, ...]:
        """Nameserver addresses, in order, without duplicates."""
        parts = (part.strip() for part in self.namesrv_addr.replace(",", ";").split(";"))
        return tuple(dict.fromkeys(part for part in parts if part))

    @property
    def asks_address_server(self) -> bool:
        """True if the broker gets its nameserver addresses from an address server.

        A configured list of nameservers wins over the address server, as in RocketMQ.
        """
        return self.fetch_namesrv and not self.namesrv_addrs

    @property
    def address_server_url(self) -> str:
        """URL of the address server.

        Raises:
            ValueError: If domain or subgroup cannot be part of a URL. The error states the allowed form.
        """
        return url_of(domain=self.namesrv_domain, subgroup=self.namesrv_domain_subgroup, environment="")

    @property
    def rpc_hooks(self) -> tuple[str, ...]:
        """Names of the hooks that see every request, in the order in which the broker calls them."""
        return tuple(name.strip() for name in self.rpc_hook.split(",") if name.strip())

    @property
    def register_period_s(self) -> float:
        """Seconds between registrations: the setting within its bounds, divided by ``timer_divisor``."""
        period_ms = min(max(self.register_period_ms, REGISTER_PERIOD_MIN_MS), REGISTER_PERIOD_MAX_MS)
        return period_ms / 1000 / self.timer_divisor

    @property
    def register_delay_s(self) -> float:
        """Seconds from the first registration after the start to the second: 10 s / ``timer_divisor``."""
        return REGISTER_PERIOD_MIN_MS / 1000 / self.timer_divisor

    @property
    def sync_flush(self) -> bool:
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def tls(self) -> TlsFlags:
        """TLS flags of the port for clients."""
        return TlsFlags(
            mode=self.tls_mode,
            cert=self.tls_cert,
            key=self.tls_key,
            ca=self.tls_ca,
            client_auth=self.tls_client_auth,
            config=self.tls_config,
        )

    def http_tls(self) -> PortTls:
        """Return the TLS settings of the HTTP port.

        Raises:
            TlsSettingError: If the settings contradict each other.
        """
        return http_tls(cert=self.http_tls_cert, key=self.http_tls_key, ca=self.http_tls_ca)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delays of the delay levels in ms. The first entry belongs to level 1."""
        return parse_delay_levels(self.message_delay_level)

    def validate(self) -> None:
        """Check the range of each setting, and combinations of settings that depend on each other.

        Raises:
            SettingError: For the first invalid setting.
        """
        for key, name in (("brokerName", self.broker_name), ("brokerClusterName", self.cluster_name)):
            if not is_broker_name(name):
                raise SettingError(
                    f"{key}={name[:300]!r}: allowed are {CHARACTERS} and dots, {TOPIC_LENGTH_MAX} at most,"
                    " not dots alone"
                )
        if self.broker_id != 0:
            raise SettingError(
                f"brokerId={self.broker_id}: only 0 (a master) can be served, slaves need replication"
            )
        if self.broker_role != _MASTER:
            raise SettingError(
                f"brokerRole={self.broker_role}: only {_MASTER} can be served, there is no replication"
            )
        if self.acl_enable and not self.acl_file and not self.rocketmq_home:
            raise SettingError(
                "aclEnable=true needs aclFile=FILE, or ROCKETMQ_HOME for its conf/plain_acl.yml and conf/acl"
            )
        if self.acl_file and not self.acl_enable:
            raise SettingError(f"aclFile={self.acl_file} needs aclEnable=true")
        if self.admin_networks:
            try:
                parse_networks(self.admin_networks)
            except AddressError as error:
                raise SettingError(f"adminNetworks: {error}") from None
        if "," in self.log_path:
            raise SettingError(f"storePathCommitLog={self.log_path}: one directory is supported, not several")
        if len(self.namesrv_addrs) > NAMESRV_ADDRS_MAX:
            raise SettingError(
                f"namesrvAddr: {len(self.namesrv_addrs)} addresses, allowed are {NAMESRV_ADDRS_MAX}"
            )
        for addr in self.namesrv_addrs:
            if not is_address(addr):
                fault = address_fault(addr, form=ADDR_FORM, separator="semicolons")
                raise SettingError(f"namesrvAddr: {addr[:300]!r} {fault}")
        try:
            self.address_server_url  # noqa: B018 - raises when malformed
        except ValueError as error:
            raise SettingError(str(error)) from None
        for key, value in (
            ("tls.enable", self.tls_enable),
            ("tls.client.authServer", self.tls_client_auth_server),
        ):
            if value not in ("", "true", "false"):
                raise SettingError(f"{key}={value[:80]!r} is neither true nor false")
        if self.tls_client_key and not self.tls_client_cert:
            raise SettingError("tls.client.keyPath needs tls.client.certPath")
        if self.http != "off":
            try:
                split_address(self.http)
            except LocalProtocolError:
                fault = address_fault(self.http, form=f"{FORM}, or off")
                raise SettingError(f"httpListen={self.http[:80]} {fault}") from None
        try:
            self.tls.check()
            self.http_tls()
        except TlsSettingError as error:
            raise SettingError(str(error)) from None
        for key, (low, high) in RANGES.items():
            value = getattr(self, _FIELDS[key].name)
            if not low <= value <= high:
                raise SettingError(f"{key}={value} is outside {low}..{high}")
        # A file of the commit log must hold the largest record and the padding after it. The 64 KiB are for
        # the record's header, topic and properties.
        file_min = self.message_size_max + 64 * 1024
        if not file_min <= self.log_file_size <= 2**40:
            raise SettingError(
                f"mappedFileSizeCommitLog={self.log_file_size} must hold maxMessageSize plus 64 KiB"
                f" ({file_min}) and be at most {2**40}"
            )
        self.check_logging()
        if self.flush_disk_type not in _FLUSH_TYPES:
            raise SettingError(f"flushDiskType={self.flush_disk_type}: allowed are {', '.join(_FLUSH_TYPES)}")
        if self.recover_damaged_log not in _DAMAGE_POLICIES:
            raise SettingError(
                f"recoverDamagedLog={self.recover_damaged_log}: allowed are {', '.join(_DAMAGE_POLICIES)}"
            )
        parse_hours(self.delete_when)
        self.delay_levels_ms  # noqa: B018 - raises when malformed

    def check_logging(self) -> None:
        """Check the settings of the program's log. The log is set up before other settings are checked.

        Raises:
            SettingError: If ``logLevel`` or ``logFormat`` has a value that is not allowed.
        """
        for key, word, allowed in (
            ("logLevel", self.log_level, LEVELS),
            ("logFormat", self.log_format, STYLES),
        ):
            if word not in allowed:
                raise SettingError(f"{key}={word[:80]}: allowed are {', '.join(allowed)}")

    def to_properties(self) -> dict[str, str]:
        """Return every setting by RocketMQ's key, as ``-p`` and request 26 show it. Secrets are hidden."""
        return {
            item.metadata["key"]: "******"
            if item.metadata["secret"] and getattr(self, item.name)
            else _spell(getattr(self, item.name))
            for item in fields(self)
        }


_FIELDS: Final = {item.metadata["key"]: item for item in fields(BrokerConfig)}
#: Keys that request 25 (UPDATE_BROKER_CONFIG) may change. Never add a path or an address to bind. Otherwise
#: an operator could make the broker write into another folder, or listen on another network.
LIVE_KEYS: Final = frozenset(key for key, item in _FIELDS.items() if item.metadata["live"])
#: Keys whose values the broker never shows.
SECRET_KEYS: Final = frozenset(key for key, item in _FIELDS.items() if item.metadata["secret"])
#: Keys of the settings that select the nameservers with which the broker registers.
NAMESRV_KEYS: Final = frozenset(
    {
        *("namesrvAddr", "fetchNameSrvAddrByDnsLookup", "updateNameServerAddrPeriod"),
        *("fetchNamesrvAddrByAddressServer", "fetchNamesrvAddrInterval"),
    }
)
#: Keys that ``-m`` prints. Source: ImportantField in BrokerConfig and MessageStoreConfig, RocketMQ 5.3.
IMPORTANT_KEYS: Final = frozenset(
    {
        *("namesrvAddr", "brokerIP1", "listenPort", "brokerName", "brokerClusterName", "brokerId"),
        *("fetchNameSrvAddrByDnsLookup", "fetchNamesrvAddrByAddressServer"),
        *("autoCreateTopicEnable", "autoCreateSubscriptionGroup", "traceTopicEnable"),
        *("rejectTransactionMessage", "aclEnable", "storePathRootDir", "storePathCommitLog"),
        *("flushIntervalCommitLog", "deleteWhen", "fileReservedTime", "maxTransferBytesOnMessageInMemory"),
        *("maxTransferCountOnMessageInMemory", "brokerRole", "flushDiskType", "cleanFileForciblyEnable"),
    }
)


def apply_properties(config: BrokerConfig, values: Mapping[str, str]) -> tuple[BrokerConfig, tuple[str, ...]]:
    """Return two results: a copy of the config with the new ``values``, and the unknown keys in ``values``.

    Raises:
        SettingError: If a known key has a value of the wrong type.
    """
    changes: dict[str, Any] = {}
    unknown = []
    for key, text in values.items():
        item = _FIELDS.get(key)
        if item is None:
            unknown.append(key)
            continue
        # Remove blanks around the value, as RocketMQ's brokers 5.x do.
        changes[item.name] = _parse(key, text.strip(_BLANKS), type(item.default))
    return replace(config, **changes), tuple(sorted(unknown))


def is_broker_name(text: str) -> bool:
    """Return True if a broker or cluster may have this name.

    The allowed characters are those of topic names, and dots, as in host names. A name of dots only is not
    allowed.
    """
    return _NAME.fullmatch(text) is not None and text.strip(".") != ""


@functools.lru_cache(maxsize=4)
def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in ``messageDelayLevel``, in ms.

    The text has numbers with a unit (s, m, h or d), separated by blanks.

    Raises:
        SettingError: If a level is malformed, or if there is no level.
    """
    levels = []
    for part in text.split():
        unit = _UNITS.get(part[-1])
        if unit is None or not part[:-1].isdecimal():
            raise SettingError(f"messageDelayLevel: {part!r} is not a number with a unit of s, m, h or d")
        digits = part[:-1].lstrip("0") or "0"
        delay_ms = int(digits) * unit if len(digits) <= 12 else _DELAY_MAX_MS + 1
        if delay_ms > _DELAY_MAX_MS:
            raise SettingError(f"messageDelayLevel: {part[:40]!r} is above {_DELAY_MAX_MS // 86_400_000}d")
        levels.append(delay_ms)
    if not 0 < len(levels) <= _DELAY_LEVELS_MAX:
        raise SettingError(
            f"messageDelayLevel names {len(levels)} levels, allowed are 1..{_DELAY_LEVELS_MAX}"
        )
    return tuple(levels)


def _parse(key: str, text: str, kind: type) -> Any:
    if not text.isprintable():
        # The answer to request 26 has one setting per line. After a line break, the rest of a value would
        # look like another setting.
        raise SettingError(f"{key}={text[:80]!r}: allowed are printable characters on one line")
    if kind is str:
        return text.upper() if key == "logLevel" else text
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise SettingError(f"{key}={text[:80]!r} is neither true nor false")
        return text.lower() == "true"
    if kind is float:
        if not _DECIMAL.fullmatch(text):
            raise SettingError(f"{key}={text[:80]!r} is not a number")
        return float(text)
    if not _WHOLE.fullmatch(text):
        raise SettingError(f"{key}={text[:80]!r} is not a whole number")
    return int(text)


def _spell(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
