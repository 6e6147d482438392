"""Settings of one nameserver process: RocketMQ's names and defaults, parsed and checked once.

Flags win over DATA/namesrv.properties (what request 318 changed), which wins over the ``-c`` file, which wins
over defaults. An unknown flag is an error, an unknown key in a file a warning that names it.
Source: NamesrvConfig, NettyServerConfig and NamesrvStartup, RocketMQ 4.9 and 5.3.
"""

from __future__ import annotations

import argparse
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Final, NoReturn

from remoting.properties import format_properties, parse_properties

MODES: Final = ("independent", "raft")
DURABILITIES: Final = ("memory", "journal", "fsync")
FRESHNESSES: Final = ("stale", "default", "linearizable")
"""What the setting ``routeFreshness`` may say; the last one in raft mode only."""

FIRST_SCAN_S: Final = 5.0
"""Time from the start to the first scan for silent brokers. Source: NamesrvController.initialize, 4.9."""

INERT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "rocketmqHome": "",
        "clusterTest": "false",
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
)
"""RocketMQ's keys that have nothing to set here, with their defaults: accepted, printed, without effect."""

_ASKS_FOR_MORE: Final = frozenset({"clusterTest", "enableControllerInNamesrv"})


class ConfigError(Exception):
    """A setting that cannot be used; the message is the one line printed before exit 2."""


def _setting(
    key: str, default: Any, help_: str, *, flag: str | None = None, runtime: bool = False, unit: str = ""
) -> Any:
    """Declare a setting.

    Args:
        key: Its name in files, in 318 and 319, and as a long flag.
        flag: Its own flag, without dashes; the key works as a flag in any case.
        runtime: Request 318 may change it.
    """
    metadata = {"key": key, "help": help_, "flag": flag, "runtime": runtime, "unit": unit}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvSettings:
    """Everything that can be set, resolved and checked. Durations carry their unit in the name."""

    mode: str = _setting("mode", "independent", "how nameservers agree", flag="mode")
    bind_address: str = _setting("bindAddress", "127.0.0.1", "address that --listen names")
    listen_port: int = _setting("listenPort", 9876, "port that --listen names; 0 picks a free one")
    http: str = _setting(
        "httpListen", "127.0.0.1:9880", "HOST:PORT for HTTP and the web page, or off", flag="http"
    )
    data_dir: str = _setting("dataDir", "./data", "directory for everything kept", flag="data")
    kv_config_path: str = _setting("kvConfigPath", "", "KV file; empty is DATA/kvConfig.json")
    config_store_path: str = _setting(
        "configStorePath", "", "file of settings changed by request 318; empty is DATA/namesrv.properties"
    )
    route_freshness: str = _setting(
        "routeFreshness", "default", "freshness of reads on the wire", runtime=True
    )
    scan_interval_ms: int = _setting(
        "scanNotActiveBrokerInterval",
        10_000,
        "time between scans for silent brokers",
        runtime=True,
        unit="ms",
    )
    idle_timeout_s: int = _setting(
        "serverChannelMaxIdleTimeSeconds", 120, "silence after which a connection is closed", unit="s"
    )
    drain_s: int = _setting(
        "shutdownWaitTimeSeconds", 30, "longest wait for requests in flight at shutdown", unit="s"
    )
    socket_backlog: int = _setting("serverSocketBacklog", 1024, "connections waiting to be accepted")
    connections_max: int = _setting(
        "serverConnectionsMax", 0, "connections held at once; 0 is what open files allow"
    )
    frame_size_max: int = _setting(
        "frameMaxLength", 16_777_216, "largest frame, length word included", unit="bytes"
    )
    product_env_name: str = _setting("productEnvName", "center", "name of this environment", runtime=True)
    order_message_enable: bool = _setting(
        "orderMessageEnable", False, "routes carry orderTopicConf", runtime=True
    )
    return_order_topic_config_to_broker: bool = _setting(
        "returnOrderTopicConfigToBroker", True, "registrations are answered with order topics", runtime=True
    )
    support_acting_master: bool = _setting(
        "supportActingMaster", False, "the smallest slave id stands in for a missing master", runtime=True
    )
    enable_all_topic_list: bool = _setting("enableAllTopicList", True, "request 206 is served", runtime=True)
    enable_topic_list: bool = _setting(
        "enableTopicList", True, "requests 224 and 311 to 313 are served", runtime=True
    )
    notify_min_broker_id_changed: bool = _setting(
        "notifyMinBrokerIdChanged", False, "brokers are told by request 905", runtime=True
    )
    need_wait_for_service: bool = _setting(
        "needWaitForService", False, "routes are refused shortly after the start", runtime=True
    )
    wait_seconds_for_service: int = _setting(
        "waitSecondsForService", 45, "how long needWaitForService refuses", runtime=True, unit="s"
    )
    delete_topic_with_broker_registration: bool = _setting(
        "deleteTopicWithBrokerRegistration",
        False,
        "a full registration removes topics that it lacks",
        runtime=True,
    )
    config_black_list: str = _setting(
        "configBlackList", "configBlackList;configStorePath;kvConfigPath", "keys that 318 may not change"
    )
    raft: str = _setting("raftAddress", "", "this member's raft HOST:PORT, as in --peers", flag="raft")
    peers: str = _setting("raftPeers", "", "raft addresses of all members, by comma", flag="peers")
    raft_listen: str = _setting(
        "raftListen", "", "HOST:PORT to bind for raft if not that of --raft", flag="raft-listen"
    )
    durability: str = _setting(
        "raftDurability", "journal", "what an acknowledgement survives", flag="durability"
    )
    raft_secret_file: str = _setting(
        "raftSecretFile",
        "",
        "file with the secret that members share, 16 bytes or more",
        flag="raft-secret-file",
    )
    raft_tls_cert: str = _setting(
        "raftTlsCert",
        "",
        "PEM file: certificate of this member for mutual TLS between members; it names the host of --raft",
        flag="raft-tls-cert",
    )
    raft_tls_key: str = _setting("raftTlsKey", "", "PEM file: its key, unencrypted", flag="raft-tls-key")
    raft_tls_ca: str = _setting(
        "raftTlsCa", "", "PEM file: authority that signed every member's certificate", flag="raft-tls-ca"
    )
    election_timeout_ms: int = _setting(
        "raftElectionTimeoutMs",
        500,
        "least election timeout; drawn up to twice this",
        flag="election-timeout-ms",
        unit="ms",
    )
    force_new_cluster: bool = _setting(
        "raftForceNewCluster",
        False,
        "after a lost quorum: become the only member of a new cluster; for one start",
        flag="force-new-cluster",
    )
    http_token_file: str = _setting(
        "httpTokenFile",
        "",
        "file with the token that changes of the raft group over HTTP need; without it they are off",
        flag="http-token-file",
    )
    inert: Mapping[str, str] = field(default_factory=dict)

    @property
    def listen(self) -> tuple[str, int]:
        """Host and port of the wire."""
        return self.bind_address, self.listen_port

    @property
    def http_listen(self) -> tuple[str, int] | None:
        """Host and port of HTTP, None if it is off."""
        return None if self.http == "off" else split_address("--http", self.http)

    @property
    def http_told(self) -> str:
        """Where operators anywhere reach the HTTP port; empty if they do not, as far as is known.

        One that is bound everywhere is reached under the name that the members use. Port 0 is not known yet.
        """
        if self.http_listen is None or not self.http_listen[1] or not self.raft:
            return ""
        host, port = self.http_listen
        member = split_address("--raft", self.raft)[0]
        if host in ("", "0.0.0.0", "::"):
            return join_address(member, port)
        return "" if is_loopback(host) and not is_loopback(member) else join_address(host, port)

    @property
    def members(self) -> tuple[str, ...]:
        """Raft addresses of all members as written; the text is the identity."""
        return tuple(peer.strip() for peer in self.peers.split(",") if peer.strip())

    @property
    def kv_path(self) -> str:
        return self.kv_config_path or f"{self.data_dir}/kvConfig.json"

    @property
    def store_path(self) -> str:
        return self.config_store_path or f"{self.data_dir}/namesrv.properties"


_SETTINGS: Final = tuple(f for f in fields(NamesrvSettings) if "key" in f.metadata)
_BY_KEY: Final = {f.metadata["key"]: f for f in _SETTINGS}

RUNTIME_KEYS: Final = frozenset(f.metadata["key"] for f in _SETTINGS if f.metadata["runtime"])
"""What request 318 may change: never a path, an address or an identity (CVE-2023-37582)."""

_RAFT_ONLY: Final = frozenset(
    {
        *("raft", "peers", "raft_listen", "durability", "raft_secret_file", "raft_tls_cert", "raft_tls_key"),
        *("raft_tls_ca", "election_timeout_ms", "force_new_cluster"),
    }
)
"""Settings that mean nothing in another mode, so naming them there is an error."""

_NEVER_BY_318: Final = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})


# -- command line -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What the flags say.

    Attributes:
        flags: Settings by key.
        config_file: Of ``-c``.
        print_config: ``-p``: print all settings and exit 0.
    """

    flags: Mapping[str, str]
    config_file: str | None
    print_config: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parse_command_line(argv: Sequence[str], *, version: str) -> CommandLine:
    """Read the flags of ``mqnamesrv``; ``--help`` and ``--version`` print and exit.

    Raises:
        ConfigError: If a flag is unknown or lacks its value.
    """
    parser = _Parser(prog="mqnamesrv", description="RocketMQ nameserver", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("-c", dest="config_file", metavar="FILE", help="properties file")
    parser.add_argument("-p", dest="print_config", action="store_true", help="print all settings and exit")
    parser.add_argument("-n", dest="ignored", metavar="ADDRESSES", help=argparse.SUPPRESS)
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="address for RocketMQ's protocol (default 127.0.0.1:9876)"
    )
    for declared in _SETTINGS:
        meta = declared.metadata
        default = _spell(declared.default) or "none"
        unit = f" {meta['unit']}" if meta["unit"] else ""
        help_ = f"{meta['help']} (default {default}{unit})"
        choices = _CHOICES.get(meta["key"])
        metavar = "|".join(choices) if choices else "VALUE"
        names = [f"--{name}" for name in dict.fromkeys((meta["flag"] or meta["key"], meta["key"]))]
        if declared.name == "force_new_cluster":
            parser.add_argument(*names, dest=meta["key"], action="store_const", const="true", help=help_)
        else:
            parser.add_argument(*names, dest=meta["key"], metavar=metavar, help=help_)
    for key in INERT:
        parser.add_argument(f"--{key}", metavar="VALUE", help=argparse.SUPPRESS)
    given = vars(parser.parse_args(argv))
    flags = {key: value for key, value in given.items() if key in _BY_KEY or key in INERT}
    flags = {key: value for key, value in flags.items() if value is not None}
    if given["listen"] is not None:
        host, port = split_address("--listen", given["listen"])
        flags |= {"bindAddress": host, "listenPort": str(port)}
    return CommandLine(
        flags=flags, config_file=given["config_file"], print_config=bool(given["print_config"])
    )


# -- from texts to settings ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Settings, and what their reader should be told about the files."""

    settings: NamesrvSettings
    warnings: tuple[str, ...]


def load_settings(
    *,
    flags: Mapping[str, str] = MappingProxyType({}),
    stored: Mapping[str, str] = MappingProxyType({}),
    file: Mapping[str, str] = MappingProxyType({}),
) -> Loaded:
    """Merge the sources by rank and check the result.

    Args:
        stored: Content of :attr:`NamesrvSettings.store_path`; only what 318 may change counts.

    Raises:
        ConfigError: If a value is of the wrong kind, out of range, or contradicts another.
    """
    warnings: list[str] = []
    for key in file:
        if key not in _BY_KEY and key not in INERT:
            warnings.append(f"unknown key {key} in the configuration file is ignored")
    kept = {key: value for key, value in stored.items() if key in RUNTIME_KEYS}
    warnings += [f"key {key} in the stored settings is ignored" for key in stored if key not in kept]
    merged = {**file, **kept, **flags}
    values: dict[str, Any] = {}
    for key, text in merged.items():
        declared = _BY_KEY.get(key)
        if declared is not None:
            values[declared.name] = _parse(key, text, declared.default)
    inert = {key: text.strip() for key, text in merged.items() if key in INERT}
    for key, text in inert.items():
        if key in _ASKS_FOR_MORE and text.lower() == "true":
            warnings.append(f"{key}=true has no effect here")
    settings = NamesrvSettings(**values, inert=MappingProxyType(inert))
    validate(settings)
    if settings.http_token_file and settings.http_listen is None:
        warnings.append("httpTokenFile has no effect with httpListen=off")
    if settings.mode != "raft":
        for key in flags:  # also one that names the default: whoever writes it expects it to matter
            if key in _BY_KEY and _BY_KEY[key].name in _RAFT_ONLY:
                raise _needs_raft(_BY_KEY[key])
        if settings.http_token_file:
            warnings.append(
                "httpTokenFile has no effect without --mode raft: nothing over HTTP needs a token"
            )
    return Loaded(settings=settings, warnings=tuple(warnings))


def _parse(key: str, text: str, default: object) -> object:
    value = text.strip()
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise ConfigError(f"{key}={value} is neither true nor false")
        return value.lower() == "true"
    if isinstance(default, int):
        try:
            number = int(value, 10)
        except ValueError:
            raise ConfigError(f"{key}={value} is no whole number") from None
        return number
    return value


def _spell(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def split_address(what: str, text: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``.

    Raises:
        ConfigError: If it is neither.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ConfigError(f"{what} {text} is not HOST:PORT with a port of 0 to 65535")
    if not bracketed and ":" in host:
        raise ConfigError(f"{what} {text} needs brackets around its IPv6 address")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host, as far as its text tells."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_RANGES: Final = {
    "listenPort": (0, 65_535),
    "scanNotActiveBrokerInterval": (50, 3_600_000),
    "serverChannelMaxIdleTimeSeconds": (1, 86_400),
    "shutdownWaitTimeSeconds": (0, 3_600),
    "serverSocketBacklog": (1, 65_535),
    "serverConnectionsMax": (0, 10_000_000),
    "frameMaxLength": (4_096, 1 << 30),
    "waitSecondsForService": (0, 86_400),
    "raftElectionTimeoutMs": (50, 60_000),
}
_CHOICES: Final = {
    "mode": MODES,
    "raftDurability": DURABILITIES,
    "routeFreshness": FRESHNESSES,
}


def validate(settings: NamesrvSettings) -> None:
    """Check ranges and relations.

    Raises:
        ConfigError: On the first that does not hold; it names value and what is allowed.
    """
    for key, (least, most) in _RANGES.items():
        number = getattr(settings, _BY_KEY[key].name)
        if not least <= number <= most:
            raise ConfigError(f"{key}={number} is outside {least} to {most}")
    for key, choices in _CHOICES.items():
        word = getattr(settings, _BY_KEY[key].name)
        if word not in choices:
            raise ConfigError(f"{key}={word} is none of {', '.join(choices)}")
    if not settings.data_dir:
        raise ConfigError("dataDir is empty")
    if settings.http_listen is not None and settings.http_listen == settings.listen and settings.listen_port:
        raise ConfigError(f"--listen and --http are both {settings.http}")
    if settings.mode == "independent":
        for declared in _SETTINGS:
            if declared.name in _RAFT_ONLY and getattr(settings, declared.name) != declared.default:
                raise _needs_raft(declared)
        if settings.route_freshness == "linearizable":
            raise ConfigError("routeFreshness=linearizable needs --mode raft")
        return
    _validate_raft(settings)


def _needs_raft(declared: Field[Any]) -> ConfigError:
    return ConfigError(f"--{declared.metadata['flag']} needs --mode raft")


def _validate_raft(settings: NamesrvSettings) -> None:
    if not settings.raft or not settings.members:
        raise ConfigError("--mode raft needs --raft HOST:PORT and --peers HOST:PORT,HOST:PORT,...")
    for member in settings.members:
        if not split_address("--peers", member)[1] and len(settings.members) > 1:
            raise ConfigError(f"--peers {member} needs a port of 1 to 65535: the others dial it")
    if len(set(settings.members)) != len(settings.members):
        raise ConfigError(f"--peers {settings.peers} names a member twice")
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
    host, _ = split_address("--raft-listen", settings.raft_listen or settings.raft)
    if not is_loopback(host) and not settings.raft_secret_file and missing:
        raise ConfigError(
            f"raft address {settings.raft_listen or settings.raft} is reachable from other machines: "
            "it needs --raft-secret-file or --raft-tls-cert, --raft-tls-key and --raft-tls-ca"
        )


def format_settings(settings: NamesrvSettings) -> str:
    """Return ``key=value`` lines of all settings, sorted and unescaped: what ``-p`` and 319 show."""
    values = {**INERT, **settings.inert}
    for declared in _SETTINGS:
        value = getattr(settings, declared.name)
        values[declared.metadata["key"]] = _spell(value)
    values["kvConfigPath"] = settings.kv_path
    values["configStorePath"] = settings.store_path
    return format_properties(values)


# -- changes at run time ------------------------------------------------------------------------------------


class ChangeRefused(Exception):
    """Request 318 asks for something it may not change; nothing was changed."""


class ChangeInvalid(Exception):
    """Request 318 cannot be read, or a value cannot be used; nothing was changed."""


def parse_changes(body: bytes) -> dict[str, str]:
    """Read the body of request 318: properties text, in UTF-8 unlike in files.

    Raises:
        ChangeInvalid: If it is no properties text.
    """
    try:
        return parse_properties(body.decode("utf-8"))
    except ValueError:
        raise ChangeInvalid("string2Properties error") from None


def check_changes(
    settings: NamesrvSettings, changes: Mapping[str, str]
) -> tuple[NamesrvSettings, dict[str, str]]:
    """Return the settings after a change, and those changes that count.

    Unknown keys and those without effect here are left out, as RocketMQ merges only what it knows.

    Raises:
        ChangeRefused: If a key is black-listed, or known but fixed for the life of the process.
        ChangeInvalid: If a value cannot be used.
    """
    black = _NEVER_BY_318 | {key.strip() for key in settings.config_black_list.split(";")}
    if any(key in black for key in changes):
        raise ChangeRefused("Can not update config in black list.")
    fixed = sorted(key for key in changes if key in _BY_KEY and key not in RUNTIME_KEYS)
    if fixed:
        raise ChangeRefused(f"Can not update config {', '.join(fixed)}: it is read at start only.")
    counted = {key: text.strip() for key, text in changes.items() if key in RUNTIME_KEYS}
    try:
        values: dict[str, Any] = {
            _BY_KEY[key].name: _parse(key, text, _BY_KEY[key].default) for key, text in counted.items()
        }
        after = replace(settings, **values)
        validate(after)
    except ConfigError as error:
        raise ChangeInvalid(str(error)) from None
    return after, counted


class LiveSettings:
    """The settings in force; the one place that request 318 changes.

    Attributes:
        current: In force now. Read it anew for each request.
        stored: What 318 has changed, by key: content of :attr:`NamesrvSettings.store_path`.
    """

    def __init__(self, settings: NamesrvSettings, stored: Mapping[str, str] = MappingProxyType({})) -> None:
        self.current = settings
        self.stored: dict[str, str] = {key: stored[key] for key in stored if key in RUNTIME_KEYS}

    def change(self, after: NamesrvSettings, changes: Mapping[str, str]) -> None:
        """Put checked changes in force."""
        self.current = after
        self.stored.update(changes)

    def bound(self, *, listen: str, http: str) -> None:
        """Note the ports that were bound, so that 319 shows what port 0 became; hosts stay as written."""
        changes: dict[str, Any] = {"listen_port": split_address("--listen", listen)[1]}
        if (asked := self.current.http_listen) is not None:
            changes["http"] = join_address(asked[0], split_address("--http", http)[1])
        self.current = replace(self.current, **changes)
