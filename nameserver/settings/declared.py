"""Settings of one nameserver process, with RocketMQ's names and mostly its defaults, parsed and checked once.

The sources of a value, from the strongest to the weakest:

- flags;
- DATA/namesrv.properties: the settings that request 318 changed;
- environment variables;
- the ``-c`` file;
- defaults.

An unknown flag is an error. An unknown key in a file causes a warning that names the key.
Source: NamesrvConfig, NettyServerConfig and NamesrvStartup, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import partial
from typing import Any, Final, Literal

from routekeeper.remoting.acl.addresses import AddressError, parse_networks
from routekeeper.remoting.acl.rules import MODES as ACL_MODES
from routekeeper.remoting.addresses import (
    address_fault,
    is_loopback,
    is_unspecified,
    join_address,
    split_address,
)
from routekeeper.remoting.errors import LocalProtocolError
from routekeeper.remoting.http.hosts import host_fault
from routekeeper.remoting.lenient import is_integer
from routekeeper.remoting.logs import LEVELS, STYLES
from routekeeper.remoting.properties import format_properties
from routekeeper.remoting.tls_settings import PortTls, TlsFlags, TlsSettingError, http_tls

FIRST_SCAN_S: Final = 5.0
"""Seconds from the start to the first scan for silent brokers. Source: NamesrvController.initialize, 4.9."""

INERT: Final[Mapping[str, str]] = {
    "rocketmqHome": "",
    "clientRequestThreadPoolNums": "8",
    "clientRequestThreadPoolQueueCapacity": "50000",
    "defaultThreadPoolNums": "16",
    "defaultThreadPoolQueueCapacity": "10000",
    "unRegisterBrokerQueueCapacity": "3000",
    "enableControllerInNamesrv": "false",
    "serverWorkerThreads": "8",
    "serverCallbackExecutorThreads": "0",
    "serverSelectorThreads": "3",
    "serverOnewaySemaphoreValue": "256",
    "serverAsyncSemaphoreValue": "64",
    "serverSocketSndBufSize": "0",
    "serverSocketRcvBufSize": "0",
    "writeBufferHighWaterMark": "0",
    "writeBufferLowWaterMark": "0",
    "serverPooledByteBufAllocatorEnable": "true",
    "useEpollNativeSelector": "false",
    "serverNettyWorkerGroupEnable": "true",
    "enableShutdownGracefully": "false",
}
"""Keys of RocketMQ's settings that have no effect in RouteKeeper, with their default values.

RouteKeeper accepts these keys and prints them.
"""


class ConfigError(Exception):
    """Error: a setting is invalid. The process prints the message as one line and exits with code 2."""


def _setting(
    default: Any,
    help_: str,
    *,
    key: str = "",
    flag: str | Literal[True] = "",
    runtime: bool = False,
    unit: str = "",
    group: str = "",
    metavar: str = "",
) -> Any:
    """Declare a setting.

    Args:
        group: Heading above the setting in ``--help``, one of :data:`GROUPS`. If empty, see :func:`group_of`.
        metavar: Placeholder of the value in ``--help``. If empty, see :func:`metavar_of`.
        key: Name in files, in requests 318 and 319, and as a long flag. If empty, it is the field's
            name in camel case.
        flag: The setting's own flag, without dashes, see :func:`flag_of`; the key also works as a flag.
        runtime: True if request 318 may change the setting, see :data:`_runtime`.
    """
    metadata = {"key": key, "help": help_, "flag": flag, "runtime": runtime, "unit": unit}
    metadata |= {"group": group, "metavar": metavar}
    return field(default=default, metadata=metadata)


_runtime: Final = partial(_setting, runtime=True)
"""Function that declares a setting which request 318 may change."""

_flagged: Final = partial(_setting, flag=True)
"""Function that declares a setting whose flag is the name of its field, with dashes for underscores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvSettings:
    """All settings of the process, resolved and checked. The name of a duration ends with its unit."""

    mode: str = _flagged(
        "independent", "raft: the nameservers share one route table; independent: each has its own"
    )
    bind_address: str = _setting("127.0.0.1", "host that --listen names", metavar="HOST")
    listen_port: int = _setting(9876, "port that --listen names; 0 picks a free one", metavar="PORT")
    http: str = _flagged(
        "127.0.0.1:9880",
        "address of HTTP and the web page, or off",
        key="httpListen",
        metavar="HOST:PORT|off",
    )
    data_dir: str = _setting(
        "./data", "directory for all files of this nameserver", flag="data", metavar="DIR"
    )
    kv_config_path: str = _setting("", "file of the KV configuration; empty: DATA/kvConfig.json")
    config_store_path: str = _setting(
        "", "file of settings changed by request 318; empty: DATA/namesrv.properties"
    )
    route_freshness: str = _runtime("default", "freshness of reads on the wire")
    scan_interval_ms: int = _runtime(
        10_000,
        "time between scans for silent brokers (independent mode)",
        key="scanNotActiveBrokerInterval",
        unit="ms",
    )
    idle_timeout_s: int = _setting(
        120, "silence after which a connection is closed", key="serverChannelMaxIdleTimeSeconds", unit="s"
    )
    drain_s: int = _setting(
        30, "longest wait for requests in flight at shutdown", key="shutdownWaitTimeSeconds", unit="s"
    )
    socket_backlog: int = _setting(1024, "connections waiting to be accepted", key="serverSocketBacklog")
    connections_max: int = _setting(
        0,
        "most connections at once; 0: as many as the limit of open files allows",
        key="serverConnectionsMax",
    )
    frame_size_max: int = _setting(
        16_777_216, "largest frame, length word included", key="frameMaxLength", unit="bytes"
    )
    table_topics_max: int = _setting(250_000, "topics that the table holds")
    table_pairs_max: int = _setting(3_500_000, "pairs of a topic and a broker name that the table holds")
    table_brokers_max: int = _setting(1_000, "brokers that the table holds")
    table_bytes_max: int = _setting(
        67_108_864, "bytes of names, addresses and static mappings that the table holds", unit="bytes"
    )
    table_host_percent: int = _setting(
        50, "share of each of these bounds that one host may fill; no limit for loopback", unit="percent"
    )
    product_env_name: str = _runtime("center", "name of this environment", metavar="NAME")
    order_message_enable: bool = _runtime(False, "routes carry orderTopicConf")
    return_order_topic_config_to_broker: bool = _runtime(True, "answer registrations with the order topics")
    support_acting_master: bool = _runtime(False, "the smallest slave id stands in for a missing master")
    enable_all_topic_list: bool = _runtime(True, "request 206 is served")
    enable_topic_list: bool = _runtime(True, "requests 224 and 311 to 313 are served")
    notify_min_broker_id_changed: bool = _setting(
        False, "changes of the smallest broker id are sent to brokers (request 905)"
    )
    need_wait_for_service: bool = _runtime(False, "refuse route queries shortly after the start")
    wait_seconds_for_service: int = _runtime(
        45, "time for which needWaitForService refuses route queries", unit="s"
    )
    delete_topic_with_broker_registration: bool = _runtime(
        False,
        "a full registration removes topics that it lacks; in raft mode give all members the same value",
    )
    config_black_list: str = _setting(
        "configBlackList;configStorePath;kvConfigPath",
        "keys that request 318 may not change",
        metavar="KEY;KEY;...",
    )
    raft: str = _flagged(
        "", "this member's raft address, as in --peers", key="raftAddress", metavar="HOST:PORT"
    )
    peers: str = _flagged(
        "", "raft addresses of all members", key="raftPeers", metavar="HOST:PORT,HOST:PORT,..."
    )
    raft_listen: str = _flagged("", "address to bind for raft if not that of --raft", metavar="HOST:PORT")
    durability: str = _flagged(
        "journal", "failures that an acknowledged change survives", key="raftDurability"
    )
    raft_secret_file: str = _flagged("", "file with the secret that members share, 32 bytes or more")
    raft_tls_cert: str = _flagged(
        "", "PEM file: certificate of this member for mutual TLS between members; it names the host of --raft"
    )
    raft_tls_key: str = _flagged("", "PEM file: key of that certificate, unencrypted")
    raft_tls_ca: str = _flagged("", "PEM file: authority that signed every member's certificate")
    tls_mode: str = _flagged(
        "",
        "TLS of RocketMQ's protocol; permissive if a certificate is given",
        metavar="disabled|permissive|enforcing",
    )
    tls_cert: str = _flagged("", "PEM file: certificate of the port for RocketMQ's protocol, and its chain")
    tls_key: str = _flagged("", "PEM file: key of --tls-cert; empty if that file has the key, too")
    tls_ca: str = _flagged("", "PEM file: authorities that sign clients' certificates")
    tls_client_auth: str = _flagged(
        "", "whether clients must present a certificate signed by --tls-ca", metavar="none|optional|require"
    )
    tls_config: str = _flagged("", "file with RocketMQ's settings of TLS (tls.server.certPath and others)")
    http_tls_cert: str = _flagged("", "PEM file: certificate of HTTP; turns TLS on there")
    http_tls_key: str = _flagged("", "PEM file: key of --http-tls-cert; empty if that file has the key, too")
    http_tls_ca: str = _flagged(
        "", "PEM file: authorities; if given, HTTP clients must present a certificate signed by one"
    )
    election_timeout_ms: int = _flagged(
        500,
        "minimum election timeout; each one is drawn between this and twice this",
        key="raftElectionTimeoutMs",
        unit="ms",
    )
    force_new_cluster: bool = _flagged(
        False,
        "after a lost quorum: become the only member of a new cluster; only for one start",
        key="raftForceNewCluster",
    )
    http_token_file: str = _flagged(
        "", "file with the token that changes over HTTP need (raft group, KV values); without it they are off"
    )
    http_allowed_hosts: str = _flagged(
        "",
        "host names, separated by commas and without ports, under which HTTP answers; loopback names always "
        "work on loopback; on other addresses every name works while this is empty",
        metavar="HOST,HOST,...",
    )
    console_peers: str = _flagged(
        "brokers",
        "HTTP addresses of other nameservers for the page; brokers: the nameservers in brokers' settings, "
        "or the members of the group; off: no other nameserver is asked",
        metavar="HOST:PORT,HOST:PORT,...|brokers|off",
        group="HTTP",
    )
    acl: str = _flagged(
        "off", "which requests are checked: none, those that change something, or all; needs --acl-file"
    )
    acl_file: str = _flagged("", "accounts, as RocketMQ 4.9's brokers read them from plain_acl.yml")
    admin_networks: str = _flagged(
        "",
        "networks, separated by commas, such as 10.0.0.0/8: accept administrators' changes only from these; "
        "empty: from anywhere",
        metavar="CIDR,CIDR,...",
    )
    rpc_hook: str = _flagged(
        "", "MODULE:CLASS of a hook that sees requests and answers, and may refuse requests; may be repeated"
    )
    cluster_test: bool = _setting(
        False,
        "this is a test environment: ask the nameservers of productEnvName for routes of unknown topics",
    )
    cluster_test_nameservers: str = _flagged(
        "",
        "production's nameservers for clusterTest, separated by semicolons; empty: ask the address server",
        metavar="HOST:PORT;HOST:PORT;...",
    )
    namesrv_domain: str = _setting(
        "jmenv.tbsite.net",
        "HOST or HOST:PORT of the address server for clusterTest",
        key="rocketmq.namesrv.domain",
        metavar="HOST:PORT",
    )
    namesrv_domain_subgroup: str = _setting(
        "nsaddr",
        "first part of the name in the address server's path",
        key="rocketmq.namesrv.domain.subgroup",
        metavar="NAME",
    )
    log_level: str = _setting("INFO", "least severe log line written to stderr", flag=True, runtime=True)
    log_format: str = _flagged("text", "lines of text, or one JSON object a line; UTC")
    inert: Mapping[str, str] = field(default_factory=dict)

    @property
    def listen(self) -> tuple[str, int]:
        """Host and port for RocketMQ's protocol."""
        return self.bind_address, self.listen_port

    @property
    def http_listen(self) -> tuple[str, int] | None:
        """Host and port of HTTP; None if HTTP is off."""
        return None if self.http == "off" else read_address("--http", self.http)

    @property
    def http_told(self) -> str:
        """The HTTP address that operators can use from any machine; empty if it is unknown.

        If HTTP listens on all addresses of this machine, the result contains the host of ``--raft``. The
        result is empty in independent mode, and if the port is 0 (any free port).
        """
        if self.http_listen is None or not self.http_listen[1] or not self.raft:
            return ""
        host, port = self.http_listen
        member = read_address("--raft", self.raft)[0]
        if host in ("", "0.0.0.0", "::"):
            return join_address(member, port)
        return "" if is_loopback(host) and not is_loopback(member) else join_address(host, port)

    @property
    def tls(self) -> TlsFlags:
        """TLS settings of the port for RocketMQ's protocol."""
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
            TlsSettingError: The settings do not fit together.
        """
        return http_tls(cert=self.http_tls_cert, key=self.http_tls_key, ca=self.http_tls_ca)

    @property
    def members(self) -> tuple[str, ...]:
        """Raft addresses of all members, as the operator wrote them; each text identifies one member."""
        return tuple(peer.strip() for peer in self.peers.split(",") if peer.strip())

    @property
    def console_addrs(self) -> tuple[str, ...]:
        """HTTP addresses of nameservers that the console asks; empty if the setting names none."""
        if self.console_peers in CONSOLE_WORDS:
            return ()
        return tuple(dict.fromkeys(addr.strip() for addr in self.console_peers.split(",") if addr.strip()))

    @property
    def rpc_hooks(self) -> tuple[str, ...]:
        """Names of the hooks for RocketMQ's protocol, in their order."""
        return tuple(name.strip() for name in self.rpc_hook.split(",") if name.strip())

    @property
    def kv_path(self) -> str:
        return self.kv_config_path or f"{self.data_dir}/kvConfig.json"

    @property
    def store_path(self) -> str:
        return self.config_store_path or f"{self.data_dir}/namesrv.properties"


def in_camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


BY_KEY: Final = {
    of.metadata["key"] or in_camel_case(of.name): of for of in fields(NamesrvSettings) if of.metadata
}


def flag_of(declared: Field[Any]) -> str:
    """Return a setting's own flag, without the dashes; empty if the setting has no own flag."""
    flag: str | Literal[True] = declared.metadata["flag"]
    return declared.name.replace("_", "-") if flag is True else flag


#: Headings in ``--help``, in their order.
GROUPS: Final = ("network", "route table", "raft", "storage", "security", "HTTP", "other")
#: Pairs of a prefix and a heading: settings whose names begin with the prefix have this heading in
#: ``--help``. The first match counts.
_GROUP_OF: Final = (
    *((name, "raft") for name in ("raft", "peers", "durability", "election", "force_new")),
    *((name, "HTTP") for name in ("http",)),
    *((name, "security") for name in ("tls", "acl", "admin", "config_black", "namesrv_tls")),
    *((name, "network") for name in ("bind", "listen", "idle", "drain", "socket", "connections", "frame")),
    *((name, "storage") for name in ("data", "kv_", "config_store")),
    *(
        (name, "route table")
        for name in ("table", "scan", "order_", "return_order", "support_acting", "delete_")
    ),
)
_FILE_ENDS: Final = ("_file", "_cert", "_key", "_ca", "_path", "_config")


def group_of(declared: Field[Any]) -> str:
    """Return the heading in ``--help`` above a setting."""
    of_name = (group for beginning, group in _GROUP_OF if declared.name.startswith(beginning))
    return str(declared.metadata["group"]) or next(of_name, "other")


def metavar_of(key: str, declared: Field[Any]) -> str:
    """Return the placeholder of a setting's value in ``--help``."""
    given = str(declared.metadata["metavar"])
    if given or key in CHOICES:
        return given or "|".join(CHOICES[key])
    if isinstance(declared.default, bool):
        return "true|false"
    if isinstance(declared.default, int):
        return str(declared.metadata["unit"]).upper() or "N"
    return "FILE" if declared.name.endswith(_FILE_ENDS) else "VALUE"


#: Values of ``--console-peers`` that are keywords and not addresses.
CONSOLE_WORDS: Final = ("brokers", "off")
CONSOLE_PEERS_MAX: Final = 16
"""Largest number of nameservers in ``--console-peers``."""

RUNTIME_KEYS: Final = frozenset(key for key, of in BY_KEY.items() if of.metadata["runtime"])
"""Keys of settings that request 318 may change: never a path, an address or an identity (CVE-2023-37582)."""


def parse_values(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of known keys, by the names of their fields.

    Raises:
        ConfigError: A value is of the wrong kind.
    """
    known = {key: BY_KEY[key] for key in texts if key in BY_KEY}
    return {of.name: _parse(key, texts[key], of.default) for key, of in known.items()}


def _parse(key: str, text: str, default: object) -> object:
    value = text.strip()
    if key == "logLevel":
        return value.upper()
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"{key}={value} is neither true nor false")
        return value.lower() == "true"
    if isinstance(default, int):
        if not is_integer(value):
            raise ConfigError(f"{key}={value} is no whole number")
        return int(value)
    return value


def spell_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_address(what: str, text: str, *, separator: str = "") -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``.

    Args:
        what: Name of the setting; the error's text begins with it.
        separator: Name of the character between two addresses, if the setting may have several addresses.

    Raises:
        ConfigError: The text has neither form.
    """
    try:
        host, port = split_address(text)
    except LocalProtocolError:
        raise ConfigError(f"{what} {text[:300]} {address_fault(text, separator=separator)}") from None
    if ":" in host and not text.startswith(f"[{host}]"):
        raise ConfigError(f"{what} {text} needs brackets around its IPv6 address")
    return host, port


RANGES: Final = {
    "listenPort": (0, 65_535),
    "scanNotActiveBrokerInterval": (50, 3_600_000),
    "serverChannelMaxIdleTimeSeconds": (1, 86_400),
    "shutdownWaitTimeSeconds": (0, 3_600),
    "serverSocketBacklog": (1, 65_535),
    "serverConnectionsMax": (0, 10_000_000),
    "frameMaxLength": (4_096, 1 << 30),
    "tableTopicsMax": (1, 100_000_000),
    "tablePairsMax": (1, 100_000_000),
    "tableBrokersMax": (1, 1_000_000),
    "tableBytesMax": (1, 1 << 40),
    "tableHostPercent": (1, 100),
    "waitSecondsForService": (0, 86_400),
    "raftElectionTimeoutMs": (50, 60_000),
}
CHOICES: Final = {
    "mode": ("independent", "raft"),
    "raftDurability": ("memory", "journal", "fsync"),
    "routeFreshness": ("stale", "default", "linearizable"),  # linearizable needs raft mode, see validate()
    "acl": ACL_MODES,
    "logLevel": LEVELS,
    "logFormat": STYLES,
}


def validate(settings: NamesrvSettings) -> None:
    """Check the ranges of settings, and the rules that connect settings.

    Raises:
        ConfigError: A rule is violated. The error names the first wrong value and the allowed range.
    """
    for key, (least, most) in RANGES.items():
        number = getattr(settings, BY_KEY[key].name)
        if not least <= number <= most:
            raise ConfigError(f"{key}={number} is outside {least} to {most}")
    for key, choices in CHOICES.items():
        word = getattr(settings, BY_KEY[key].name)
        if word not in choices:
            raise ConfigError(f"{key}={word} is none of {', '.join(choices)}")
    if not settings.data_dir:
        raise ConfigError("dataDir is empty")
    if settings.http_listen is not None and settings.http_listen == settings.listen and settings.listen_port:
        raise ConfigError(f"--listen and --http are both {settings.http}")
    try:
        settings.tls.check()
        settings.http_tls()
    except TlsSettingError as error:
        raise ConfigError(str(error)) from None
    if bool(settings.acl_file) != (settings.acl != "off"):
        raise ConfigError(
            f"--acl {settings.acl} needs --acl-file FILE"
            if settings.acl != "off"
            else f"--acl-file {settings.acl_file} needs --acl admin or --acl all"
        )
    for host in filter(None, map(str.strip, settings.http_allowed_hosts.split(","))):
        if fault := host_fault(host):
            raise ConfigError(f'--http-allowed-hosts "{host[:300]}": {fault}')
    for addr in settings.console_addrs:
        if not read_address("--console-peers", addr, separator="commas")[1]:
            raise ConfigError(f"--console-peers {addr} needs a port of 1 to 65535")
    if len(settings.console_addrs) > CONSOLE_PEERS_MAX or not settings.console_peers.strip(", "):
        raise ConfigError(
            f"--console-peers names {len(settings.console_addrs)} nameservers; allowed are 1 to "
            f"{CONSOLE_PEERS_MAX}, or brokers, or off"
        )
    if settings.admin_networks:
        try:
            parse_networks(settings.admin_networks)
        except AddressError as error:
            raise ConfigError(f"--admin-networks {error}") from None
    if settings.mode == "independent":
        refuse_raft_only(key for key, of in BY_KEY.items() if getattr(settings, of.name) != of.default)
        if settings.route_freshness == "linearizable":
            raise ConfigError("routeFreshness=linearizable needs --mode raft")
        return
    _validate_raft(settings)


def refuse_raft_only(keys: Iterable[str]) -> None:
    """Check that no setting of raft mode is given in another mode.

    Raises:
        ConfigError: A setting of raft mode is given; the error names the first such setting.
    """
    for key in keys:
        if key in BY_KEY and key.startswith("raft"):
            raise ConfigError(f"--{flag_of(BY_KEY[key])} needs --mode raft")


def _validate_raft(settings: NamesrvSettings) -> None:
    if not settings.raft or not settings.members:
        raise ConfigError("--mode raft needs --raft HOST:PORT and --peers HOST:PORT,HOST:PORT,...")
    for flag, member in (("--raft", settings.raft), *(("--peers", member) for member in settings.members)):
        if is_unspecified(read_address(flag, member, separator="commas" if flag == "--peers" else "")[0]):
            raise ConfigError(
                f"{flag} {member} names no machine: the others could not dial it; allowed is an address or a "
                "name of this machine (--raft-listen says where to listen)"
            )
    for member in settings.members:
        if not read_address("--peers", member)[1] and len(settings.members) > 1:
            raise ConfigError(f"--peers {member} needs a port of 1 to 65535: the others dial it")
    if len(set(settings.members)) != len(settings.members):
        raise ConfigError(f"--peers {settings.peers} names a member twice; list each member once")
    if settings.raft not in settings.members:
        raise ConfigError(f"--raft {settings.raft} is not among --peers {settings.peers}")
    tls = {
        "--raft-tls-cert": settings.raft_tls_cert,
        "--raft-tls-key": settings.raft_tls_key,
        "--raft-tls-ca": settings.raft_tls_ca,
    }
    missing = [flag for flag, file in tls.items() if not file]
    if missing and len(missing) < len(tls):
        raise ConfigError(f"{', '.join(tls)} go together: {', '.join(missing)} is missing")
    host, _ = read_address("--raft-listen", settings.raft_listen or settings.raft)
    if not is_loopback(host) and not settings.raft_secret_file and missing:
        raise ConfigError(
            f"raft address {settings.raft_listen or settings.raft} is reachable from other machines: "
            "it needs --raft-secret-file or --raft-tls-cert, --raft-tls-key and --raft-tls-ca"
        )


def spell_settings(settings: NamesrvSettings) -> dict[str, str]:
    """Return all settings as texts, by key."""
    return {key: spell_value(getattr(settings, declared.name)) for key, declared in BY_KEY.items()}


def format_settings(settings: NamesrvSettings) -> str:
    """Return ``key=value`` lines of all settings, sorted and unescaped, for ``-p`` and request 319."""
    values = spell_settings(settings)
    paths = {"kvConfigPath": settings.kv_path, "configStorePath": settings.store_path}
    return format_properties({**INERT, **settings.inert, **values, **paths})
