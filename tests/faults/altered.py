"""Nameservers whose code a test changes before the start, to cause a certain fault."""

from __future__ import annotations

from dataclasses import dataclass, fields

from .cluster import Member

RUNS = 'runpy.run_module("routekeeper.nameserver", run_name="__main__", alter_sys=True)'


@dataclass(kw_only=True)
class Altered(Member):
    """A nameserver process that first runs a few lines of Python, which change the nameserver's code."""

    lines: str

    @property
    def command(self) -> list[str]:
        command = super().command
        at = command.index("-m")
        assert command[at : at + 2] == ["-m", "routekeeper.nameserver"]
        return [*command[:at], "-c", self.lines + RUNS, str(self.root), *command[at + 2 :]]


def altered(member: Member, lines: str) -> Altered:
    known = {field.name: getattr(member, field.name) for field in fields(member) if field.init}
    return Altered(**known, lines=lines)
