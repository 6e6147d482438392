"""A text form of requests that is easy to mutate: lines ``name=value``, an empty line, and the body."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import routekeeper.broker.requests.handlers  # noqa: F401 - declares the broker's arguments
from routekeeper.nameserver.handlers import SERVED
from routekeeper.nameserver.routes.table import RouteTable
from routekeeper.nameserver.settings.declared import NamesrvSettings
from routekeeper.nameserver.types import Request
from routekeeper.remoting.bounds import ARGUMENTS_MAX
from routekeeper.remoting.fields import Fields
from tests.registrations import decided

#: Initial values of some arguments, by name. All other arguments have the initial value "0".
_PLAUSIBLE: Final = {
    "topic": "T",
    "b": "T",
    "consumerGroup": "g",
    "producerGroup": "p",
    "a": "p",
    "group": "g",
    "compareGroup": "g",
    "srcGroup": "g",
    "destGroup": "h",
    "statsName": "TOPIC_PUT_NUMS",
    "statsKey": "T",
    "maxNum": "32",
    "groupName": "g",
    "clientID": "c",
    "clientId": "c",
    "brokerAddr": "10.0.0.1:10911",
    "haServerAddr": "10.0.0.1:10912",
    "perm": "6",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "topicFilterType": "SINGLE_TAG",
    "expressionType": "TAG",
    "subscription": "*",
    "maxMsgNums": "32",
    "suspendTimeoutMillis": "0",
    "sysFlag": "0",
    "properties": "TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01u\x02",
    "i": "TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01u\x02",
    "compressed": "false",
    "bodyCrc32": "0",
    "attributes": "+message.type=NORMAL",
    "msgId": "7F00000100002A9F0000000000000000",
    "batch": "false",
    "m": "false",
}


def _names() -> tuple[str, ...]:
    """Return the names of the arguments of all requests, also the one-letter names of SEND_MESSAGE_V2."""
    requests = [kind for kind in Fields.__subclasses__() if "Response" not in kind.__name__]
    names = {name for kind in requests for name in kind.__struct_encode_fields__}
    return tuple(sorted(names | set("abcdefghijklmn")))


NAMES: Final = _names()
_VALUES: Final = (
    *("", "0", "-1", "1", "4", "32", "2147483647", "2147483648", "-2147483648", "9223372036854775807"),
    *(
        "9" * 19,
        "9" * 5000,
        "1e308",
        "true",
        "null",
        "%RETRY%g",
        "%DLQ%g",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_x",
    ),
    *(
        "T",
        "g",
        "x" * 127,
        "x" * 512,
        "x" * 60_000,
        "../../x",
        "a/b",
        "a\x00b",
        "a\x1b[31mb\r",
        "\x01\x02" * 200,
    ),
    *("*", "a||b", "a ||" * 5000, "TAG", "SQL92", "10.0.0.1:10911", "[::1]:1", "::" * 100, "h:99999"),
    *("DELAY\x0118\x02", "WAIT\x01false\x02", "TRAN_MSG\x01true\x02", "KEYS\x01" + "k " * 8000 + "\x02"),
    *("+a=b,-c", "+" * 3000, "7F00000100002A9F7FFFFFFFFFFFFFFF", "F" * 32, "\N{FULLWIDTH DIGIT ONE}"),
)


def read(data: bytes) -> tuple[dict[str, str], bytes]:
    """Split a request's text into arguments and body; ignore arguments above the limit ARGUMENTS_MAX."""
    head, _, body = data.partition(b"\n\n")
    lines = head.decode("utf-8", "replace").split("\n")[:ARGUMENTS_MAX]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}, body


def write(ext: dict[str, str], body: bytes) -> bytes:
    return "\n".join(f"{name}={value}" for name, value in ext.items()).encode() + b"\n\n" + body


def with_all(body: bytes) -> bytes:
    """Return a request that has all arguments, so that it is valid with every request code."""
    return write({name: _PLAUSIBLE.get(name, "0") for name in NAMES[:ARGUMENTS_MAX]}, body)


def change(rng: random.Random, data: bytes) -> bytes:
    """Change or remove some arguments of a request."""
    ext, body = read(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        name = rng.choice(NAMES)
        if rng.randrange(6):
            ext[name] = rng.choice(_VALUES)
        else:
            ext.pop(name, None)
    return write(ext, body)


def asked(code: int, table: RouteTable) -> Callable[[bytes], object]:
    """Return a function that passes a request with the given code to the handlers of a nameserver."""
    settings = NamesrvSettings()

    def ask(data: bytes) -> object:
        ext, body = read(data)
        return decided(table.view, Request(code=code, ext_fields=ext, body=body), settings, uptime_s=1000.0)

    return ask


CODES: Final = tuple(sorted(SERVED))
