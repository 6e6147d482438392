"""The command line of ``mqbroker``: its own flags, and RocketMQ's names for them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from routekeeper.broker.errors import SettingError
from routekeeper.remoting.flags import Help, add_print_completion
from routekeeper.remoting.logs import LEVELS, STYLES

OWN_SETTINGS = """\
settings of our own, in the file or by --set (-p prints all settings with their defaults):
  bindAddress, advertisePort    what --listen and --advertise set
  timerDivisor                  number from 1 on (default 1) by which registerNameServerPeriod and its bounds
                                of 10 and 60 s, and the lease of 120 s, are divided; for benchmarks that
                                shorten all timers alike
  indexFileMessages             messages of one file of the index by key (default 20000)
  recoverDamagedLog             refuse (default): do not start when valid messages follow a damaged one;
                                skip: start and give up what is damaged
  maxConnections                open client connections (default 16384)
  maxTopics, maxSubscriptionGroups, maxConsumerOffsetBytes
                                topics (default 30000), consumer groups (16000) and bytes of all groups'
                                offsets (8 MiB) above which no new ones are taken
  maxQueues                     queues (default 200000) above which no other queue gets its first message
  maxClientBytes                bytes (default 64 MiB) of the groups and subscriptions that clients name in
                                heartbeats, above which no new ones are taken
  aclFile, adminNetworks, namesrvAclFile
                                what --acl-file, --admin-networks and --namesrv-acl-file set
  rpcHook                       what --rpc-hook sets, by comma
  httpListen, logLevel, logFormat
                                what --http, --log-level and --log-format set
  tlsMode, tlsCert, tlsKey, tlsCa, tlsClientAuth, tlsConfig, httpTlsCert, httpTlsKey, httpTlsCa
                                what the flags of these names set
"""


class _Parser(argparse.ArgumentParser):
    """Parser that reports an error in one line without the usage text, like an error in a settings file."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(message)


def parse_command_line(argv: Sequence[str] | None) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """Return the flags, and the words that belong to no flag. RocketMQ ignores such words.

    Raises:
        SettingError: If a flag is unknown or lacks its value.
    """
    parser = _parser()
    arguments, words = parser.parse_known_args(argv)
    if any(word.startswith("-") for word in words):
        parser.error(f"unrecognized arguments: {' '.join(words)}")
    if arguments.config_beside_proxy is not None:
        if arguments.config not in (None, arguments.config_beside_proxy):
            parser.error(
                f"-c {arguments.config} and -bc {arguments.config_beside_proxy} name two settings files,"
                " allowed is one; give -c alone"
            )
        arguments.config = arguments.config_beside_proxy
    return arguments, tuple(words)


def proxy_flags(arguments: argparse.Namespace) -> str:
    """Return the given flags of RocketMQ's proxy, for a warning; empty if none was given."""
    given = (
        ("-pc", arguments.proxy_config is not None),
        ("-pm", arguments.proxy_mode is not None),
        ("--enable-proxy", arguments.enable_proxy),
    )
    return " ".join(flag for flag, is_given in given if is_given)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mqbroker",
        description="A message broker that speaks Apache RocketMQ's protocol.",
        epilog=OWN_SETTINGS,
        formatter_class=Help,
        usage="mqbroker [-n HOST:PORT;...] [-c FILE] [--FLAG VALUE ...]",
        allow_abbrev=False,
    )
    network, storage, security, http = (
        parser.add_argument_group(name) for name in ("network", "storage", "security", "HTTP")
    )
    other = parser.add_argument_group("other")
    network.add_argument(
        "-n",
        "--namesrv",
        "--namesrvAddr",
        metavar="HOST:PORT;...",
        help="nameservers, separated by semicolons (default: environment NAMESRV_ADDR)",
    )
    network.add_argument("--listen", metavar="HOST:PORT", help="address to bind (default: 127.0.0.1:10911)")
    network.add_argument(
        "--advertise", metavar="HOST:PORT", help="address to which clients connect (default: the bound one)"
    )
    http.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve /metrics, /healthz and /readyz at this address, to any client (default: off)",
    )
    _add_tls(security, http)
    security.add_argument(
        "--acl-file",
        metavar="FILE",
        help="file of accounts in the form of plain_acl.yml; needs aclEnable=true"
        " (default: $ROCKETMQ_HOME/conf/plain_acl.yml and the files in conf/acl)",
    )
    security.add_argument(
        "--admin-networks",
        metavar="CIDR,...",
        help="accept operators' requests only from these networks (default: any)",
    )
    security.add_argument(
        "--namesrv-acl-file",
        metavar="FILE",
        help="file with accessKey and secretKey in the form of tools.yml: this broker signs its requests to "
        "nameservers (default: it signs nothing)",
    )
    security.add_argument(
        "--rpc-hook",
        action="append",
        metavar="MODULE:CLASS",
        help="hook that sees requests and answers, and may refuse requests; may be repeated (default: none)",
    )
    other.add_argument(
        "--name", metavar="NAME", help="broker name (default: the store's, else the host's name)"
    )
    other.add_argument("--cluster", metavar="NAME", help="cluster name (default: DefaultCluster)")
    other.add_argument("--id", metavar="N", help="broker id; 0 is the master (default: 0)")
    storage.add_argument(
        "--store", metavar="DIR", help="data directory (default: ./data/NAME with --name, else ./data/broker)"
    )
    parser.add_argument(
        "-c", "--config", "--configFile", metavar="FILE", help="settings in RocketMQ's properties format"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, by its name in the file; wins over the file; may be repeated",
    )
    parser.add_argument(
        "-p",
        "--print-config",
        "--printConfigItem",
        action="store_true",
        help="print all settings and exit",
    )
    parser.add_argument(
        "-m",
        "--printImportantConfig",
        action="store_true",
        dest="print_important",
        help="print the settings that RocketMQ marks as important, and exit",
    )
    _add_proxy(other)
    other.add_argument(
        "--log-level",
        metavar="|".join(LEVELS),
        help="least severe log line written to stderr (default: INFO)",
    )
    other.add_argument(
        "--log-format",
        metavar="|".join(STYLES),
        help="lines of text, or one JSON object a line; UTC (default: text)",
    )
    add_print_completion(parser)
    parser.add_argument("--version", action="version", version=f"mqbroker {version('routekeeper')}")
    return parser


def _add_proxy(other: argparse._ArgumentGroup) -> None:
    """Add the flags of RocketMQ's proxy, which can run in one process with a broker.

    Without these flags, the parser would read ``-pc FILE`` as ``-p -c FILE``.

    Source: distribution/bin/mqbroker and ProxyStartup, RocketMQ 5.3.
    """
    other.add_argument(
        "--enable-proxy",
        action="store_true",
        help="flag of RocketMQ's script; ignored with a warning, since there is no proxy",
    )
    for flag, long, name, metavar, text in (
        ("-pc", "--proxyConfigPath", "proxy_config", "FILE", "settings of RocketMQ's proxy; also ignored"),
        ("-pm", "--proxyMode", "proxy_mode", "MODE", "mode of RocketMQ's proxy; also ignored"),
        ("-bc", "--brokerConfigPath", "config_beside_proxy", "FILE", "settings file of the broker, like -c"),
    ):
        other.add_argument(flag, long, dest=name, metavar=metavar, help=text)


def _add_tls(security: argparse._ArgumentGroup, http: argparse._ArgumentGroup) -> None:
    """Add the TLS flags of this broker's ports and of its connections to nameservers."""
    security.add_argument(
        "--tls-mode",
        metavar="disabled|permissive|enforcing",
        help="TLS for clients (default: permissive if a certificate is given)",
    )
    for flag, text in (
        ("--tls-cert", "PEM file: certificate of the port for clients, and its chain"),
        ("--tls-key", "PEM file: its key (default: in the file of --tls-cert)"),
        ("--tls-ca", "PEM file: authorities that sign the certificates of clients and nameservers"),
    ):
        security.add_argument(flag, metavar="FILE", help=text)
    security.add_argument(
        "--tls-client-auth",
        metavar="none|optional|require",
        help="whether clients must present a certificate signed by --tls-ca (default: none)",
    )
    for flag, text in (
        ("--tls-config", "RocketMQ's settings of TLS (tls.server.certPath and others)"),
        ("--http-tls-cert", "PEM file: certificate of HTTP; turns TLS on there"),
        ("--http-tls-key", "PEM file: its key (default: in the file of --http-tls-cert)"),
        (
            "--http-tls-ca",
            "PEM file: authorities; if given, HTTP clients must present a certificate signed by one",
        ),
    ):
        (http if flag.startswith("--http") else security).add_argument(flag, metavar="FILE", help=text)
    security.add_argument(
        "--namesrv-tls",
        choices=("on", "off"),
        metavar="on|off",
        help="TLS to nameservers: their certificates must be signed by --tls-ca and name their host; "
        "without --tls-ca any certificate is accepted (default: on if --tls-mode is enforcing)",
    )
    for flag, text in (
        ("--tls-client-cert", "PEM file: certificate to present to nameservers that request one"),
        ("--tls-client-key", "PEM file: its key (default: in the file of --tls-client-cert)"),
    ):
        security.add_argument(flag, metavar="FILE", help=text)
