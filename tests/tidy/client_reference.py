"""Program that writes docs/client-reference.md from the docstrings of the client's public names.

The command is ``python -m tests.tidy.client_reference``. A test compares the page with the code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from routekeeper.client import errors, public

PAGE = Path(__file__).resolve().parents[2] / "docs" / "client-reference.md"
_ROLE = re.compile(r":(?:class|meth|attr|func|data|mod):`[.~]*([^`]+)`")


def reference() -> str:
    """Return the text of docs/client-reference.md."""
    names = {name: getattr(public, name) for name in public.__all__}
    exceptions = {name: value for name, value in names.items() if _is(value, BaseException)}
    settings = {name: value for name, value in names.items() if name.endswith("Config")}
    values = {name: value for name, value in names.items() if is_dataclass(value) or _is(value, Enum)}
    values = {name: value for name, value in values.items() if name not in settings}
    rest = {name: value for name, value in names.items() if name not in {*exceptions, *settings, *values}}
    parts = [
        "# Reference of the client",
        "This page is made from the code by `python -m tests.tidy.client_reference`."
        " [The client](client.md) explains how to use it.",
        "## Clients and what they make",
        "`AsyncX` has the methods of `X`, to be awaited.",
        *(
            part
            for name, value in rest.items()
            if not name.startswith("Async")
            for part in _methods(name, value)
        ),
        "## Settings",
        *(part for name, value in settings.items() for part in _record(name, value)),
        "## Values",
        *(part for name, value in values.items() for part in _record(name, value)),
        "## Exceptions",
        _tree(),
        *(part for name, value in exceptions.items() for part in _record(name, value)),
    ]
    return "\n\n".join(parts) + "\n"


def _is(value: object, of: type) -> bool:
    return isinstance(value, type) and issubclass(value, of)


def _plain(text: str) -> str:
    """Return a docstring's text with its markup changed to Markdown."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def _summary(value: object) -> str:
    """Return the first part of an object's docstring, without sections such as ``Args``."""
    doc = inspect.getdoc(value) or ""
    return _plain(re.split(r"\n\n?(?=(?:Args|Attributes|Raises|Returns|Yields):\n)", doc)[0].strip())


def _section(value: object, title: str) -> dict[str, str]:
    """Return the entries of one section of a docstring, by name.

    In the docstring, an entry may have several names, which commas separate.
    """
    found = re.search(rf"^{title}:\n((?:[ ]+.*\n?|\n)+)", inspect.getdoc(value) or "", re.MULTILINE)
    entries: dict[str, str] = {}
    for entry in re.split(r"\n(?=    \S)", "\n" + found[1].rstrip()) if found else ():
        names, colon, text = entry.strip().partition(":")
        if colon:
            entries |= dict.fromkeys(names.replace(" ", "").split(","), _plain(" ".join(text.split())))
    return entries


def _record(name: str, value: type) -> Iterator[str]:
    yield f"### {name}"
    yield _summary(value)
    about: dict[str, str] = {}
    for base in reversed(value.__mro__):
        about |= _section(base, "Attributes") | _section(base, "Args")
    if is_dataclass(value):
        rows = [
            _row(f"`{field.name}`", f"`{_type(field.type)}`", _default(field), about.get(field.name, ""))
            for field in fields(value)
            if field.init and not field.name.startswith("_")
        ]
        yield "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])
    elif issubclass(value, Enum):
        yield "\n".join(f"- `{member.name}`" for member in value)
    elif about:
        yield "\n".join(f"- `{key}`: {text}" for key, text in about.items())


def _methods(name: str, value: Any) -> Iterator[str]:
    if not isinstance(value, type):
        yield f"### {name}{_signature(value)}"
        yield _summary(value)
        return
    yield f"### {name}"
    yield _summary(value)
    rows = []
    for method, made in inspect.getmembers(value):
        if method.startswith("_") or not (callable(made) or isinstance(made, property)):
            continue
        call = method if isinstance(made, property) else f"{method}{_signature(made)}"
        text = " ".join(_summary(made).split("\n\n")[0].split())
        rows.append(f"- `{call}`  \n  {text}")
    yield "\n".join(rows)


def _signature(made: Any) -> str:
    text = str(inspect.signature(made))
    text = re.sub(r"\((?:self|cls)(?:, )?", "(", text, count=1)
    text = re.sub(r"(?<![=b] )(?<!b)'([A-Za-z][^']*)'", r"\1", text).replace("mappingproxy({})", "{}")
    return re.sub(r"(?:routekeeper|collections|typing)(?:\.[a-z_]+)*\.(?=[A-Z])", "", text)


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(field: Any) -> str:
    if field.default is not MISSING:
        value = field.default
        return f"`{type(value).__name__}.{value.name}`" if isinstance(value, Enum) else f"`{value!r}`"
    return "required" if field.default_factory is MISSING else f"`{field.default_factory.__name__}()`"


def _tree() -> str:
    """Return the tree of exceptions from the docstring of :mod:`routekeeper.client.errors`."""
    tree = re.search(r"::\n\n((?:    .*\n)+)", errors.__doc__ or "")
    assert tree is not None
    return "```\n" + re.sub(r"(?m)^    ", "", tree[1]) + "```"


if __name__ == "__main__":
    PAGE.write_text(reference())
