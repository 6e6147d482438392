"""Tests that all log lines, refusals, flags and commands that docs/operations.md quotes exist."""

from __future__ import annotations

import ast
import re
import subprocess
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from routekeeper.client.mqadmin.__main__ import COMMANDS
from routekeeper.nameserver.settings.declared import BY_KEY, NamesrvSettings, flag_of, format_settings
from tests.tls import Authority

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "operations.md"
SPAN = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
#: Programs. A quoted text that begins with one of them is a command line.
PROGRAMS = ("mqadmin", "mqnamesrv", "mqbroker", "mqshutdown", "sh bin/", "nohup sh bin/", "python3", "curl")
#: Quoted commands of other programs, which the tests do not check.
NOT_OURS = {"ulimit -n", "sha256sum -c"}


@cache
def literals() -> tuple[str, ...]:
    """Return all string literals of the servers; each part of an f-string counts as one literal."""
    found = []
    for package in ("nameserver", "broker", "remoting"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return tuple(found)


def setting_keys() -> set[str]:
    return {line.partition("=")[0] for line in format_settings(NamesrvSettings()).splitlines()}


def quoted(text: str) -> Iterator[str]:
    """Yield quoted log lines and refusals: code spans that contain a space or a "="."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for span in SPAN.findall(text):
        words = " ".join(span.split())
        if not words[0].islower() or words.startswith(PROGRAMS) or words in NOT_OURS or "*" in words:
            continue
        if "=" in words and words.partition("=")[0] in setting_keys():
            continue
        if " " in words or "=" in words:
            yield words


def pieces(quote: str) -> Iterator[str]:
    """Split a quoted line at its values: after each "=" and at each "..."."""
    for part in quote.split("..."):
        for piece in re.split(r"(?<==)", part):
            if piece.strip():
                yield piece.strip()


def missing(quote: str) -> list[str]:
    return [piece for piece in pieces(quote) if not any(piece in literal for literal in literals())]


QUOTES = sorted(set(quoted(DOCUMENT.read_text())))


def test_there_is_something_to_check() -> None:
    assert len(QUOTES) > 40


@pytest.mark.parametrize("quote", QUOTES)
def test_quoted_line_exists_in_the_source(quote: str) -> None:
    assert missing(quote) == []


@pytest.mark.parametrize(
    "quote", ["journal overflows me=... seconds=", "leader steps down ... reason=boredom"]
)
def test_line_that_nobody_writes_is_found_out(quote: str) -> None:
    assert missing(quote) != []


def test_every_flag_exists() -> None:
    known = {literal for literal in literals() if literal.startswith("--")}
    known |= {f"--{flag_of(declared)}" for declared in BY_KEY.values()}
    known |= {f"--{option.long}" for command in COMMANDS.values() for option in command.all_options}
    named = set(FLAG.findall(DOCUMENT.read_text()))
    assert {"--force-new-cluster", "--token-file", "--advertise"} <= named
    assert sorted(named - known) == []


def test_every_subcommand_exists() -> None:
    named = set(re.findall(r"mqadmin ([a-z]\w+)", DOCUMENT.read_text()))
    assert named
    assert sorted(named - set(COMMANDS)) == []


def test_every_link_within_the_page_has_its_heading() -> None:
    text = DOCUMENT.read_text()
    headings = {
        re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    links = set(re.findall(r"\]\(#([\w-]+)\)", text))
    assert links
    assert sorted(links - headings) == []


def test_defaults_in_tables_of_settings_are_those_of_the_program() -> None:
    defaults = dict(line.split("=", 1) for line in format_settings(NamesrvSettings()).splitlines())
    rows = re.findall(r"^\| `(table\w+)` \| (\d+) \|", DOCUMENT.read_text(), flags=re.MULTILINE)
    assert len(rows) == 5
    for key, default in rows:
        assert defaults[key] == default, key


@pytest.mark.parametrize(
    ("page", "authority", "certificate"),
    [("docs/operations.md", "ca.pem", "server.pem"), ("compose/README.md", "tls-ca", "tls-cert")],
)
@pytest.mark.skipif(not Authority.is_possible(), reason="there is no openssl")
def test_certificates_made_by_the_documented_commands_pass_strict_checks(
    page: str, authority: str, certificate: str, tmp_path: Path
) -> None:
    found = re.search(
        r"^ *openssl req -x509 .*?^ *openssl x509 [^\n]*", (ROOT / page).read_text(), re.M | re.S
    )
    assert found is not None
    subprocess.run(
        ["sh", "-e", "-c", textwrap.dedent(found[0])], cwd=tmp_path, check=True, capture_output=True
    )
    verify = ["openssl", "verify", "-x509_strict", "-CAfile", authority, certificate]
    checked = subprocess.run(verify, cwd=tmp_path, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
