"""Program that writes the reference of settings in docs/configuration.md from the servers' declarations.

The command is ``python -m tests.tidy.settings_reference``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from routekeeper.broker.command_line import OWN_SETTINGS
from routekeeper.broker.config import LIVE_KEYS, BrokerConfig
from routekeeper.broker.config import RANGES as BROKER_RANGES
from routekeeper.nameserver.settings.declared import (
    BY_KEY,
    CHOICES,
    INERT,
    RANGES,
    RUNTIME_KEYS,
    flag_of,
    spell_value,
)

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

_HEAD: Final = """\
# Configuration

Every setting of `mqnamesrv` and `mqbroker`, as the programs declare it. [operations.md](operations.md) and
[security.md](security.md) say when to change which. `python -m tests.tidy.settings_reference` writes this
page.

A key stands in the file of `-c`, in RocketMQ's form (`key=value`). Flags win over settings that were changed
at run time, and those win over the file. At the start, a WARNING (`setting in the file not in force`) names
each value in the file that such a change outranks. Keys marked *live* change at run time:
`mqadmin updateNamesrvConfig -k KEY -v VALUE`, `mqadmin updateBrokerConfig -k KEY -v VALUE`. `-p` prints all
settings in force.
"""
_NAMESERVER: Final = """\
## mqnamesrv

Each key is a long flag, too (`--listenPort 9876`); `--listen HOST:PORT` sets `bindAddress` and `listenPort`.
`MQNAMESRV_LOG_LEVEL` and `MQNAMESRV_LOG_FORMAT` in the environment rank before the file.

| key | flag | default | allowed | live | meaning |
|---|---|---|---|---|---|
"""
_INERT: Final = """
RocketMQ's keys that have nothing to set here are accepted and without effect:
"""
#: A key of :data:`INERT` whose other value the nameserver refuses.
_ONLY_FALSE: Final = "enableControllerInNamesrv"
_NO_CONTROLLER: Final = f"""
`{_ONLY_FALSE}` may only be `false`: there is no controller.
"""
_BROKER: Final = """
## mqbroker

`--set KEY=VALUE` sets any key on the command line; `mqbroker --help` lists the flags of their own. A key that
is not explained below the table means what it means in RocketMQ.

| key | default | allowed | live |
|---|---|---|---|
"""


def page() -> str:
    """Return the text of docs/configuration.md."""
    ours = OWN_SETTINGS.partition("\n")[2].rstrip("\n")
    inert = ", ".join(f"`{key}`" for key in INERT if key != _ONLY_FALSE)
    return "".join(
        [
            *(_HEAD, "\n", _NAMESERVER, *_nameserver_rows(), _INERT, inert, ".\n", _NO_CONTROLLER),
            *(_BROKER, *_broker_rows(), "\nOf our own:\n\n```\n", ours, "\n```\n"),
        ]
    )


def _nameserver_rows() -> Iterable[str]:
    for key, declared in sorted(BY_KEY.items()):
        flag = flag_of(declared)
        default, unit = spell_value(declared.default), declared.metadata["unit"]
        allowed = ", ".join(f"`{word}`" for word in CHOICES.get(key, ())) or _range(RANGES.get(key))
        if isinstance(declared.default, bool):
            allowed = "`true`, `false`"
        cells = [
            f"`{key}`",
            f"`--{flag}`" if flag else "",
            f"`{default}`{' ' + unit if unit else ''}" if default else "",
            allowed,
            "live" if key in RUNTIME_KEYS else "",
            declared.metadata["help"].replace("|", "\\|"),
        ]
        yield f"| {' | '.join(cells)} |\n"


def _broker_rows() -> Iterable[str]:
    for key, default in sorted(BrokerConfig().to_properties().items()):
        allowed = "`true`, `false`" if default in ("true", "false") else _range(BROKER_RANGES.get(key))
        cells = [f"`{key}`", f"`{default}`" if default else "", allowed, "live" if key in LIVE_KEYS else ""]
        yield f"| {' | '.join(cells)} |\n"


def _range(bounds: tuple[int, int] | None) -> str:
    return "" if bounds is None else f"{bounds[0]} to {bounds[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
