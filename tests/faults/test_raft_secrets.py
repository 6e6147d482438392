"""An operator can change the secret of a running group.

No restart is necessary, and members can link after every step.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.waiting import wait_until

from .cluster import Member, make_members, running

pytestmark = [pytest.mark.faults, pytest.mark.slow]

OLD, NEW = "o" * 40, "n" * 40


def write(member: Member, content: str) -> None:
    """Replace one member's secret file, and wait until the running member has read the file again."""
    path = Path(member.arguments[1])
    since = member.log_size() if member.log_path.exists() else 0
    new = path.with_suffix(".new")
    new.write_text(content)
    new.chmod(0o600)
    os.replace(new, path)
    if member.process is not None:
        wait_until(lambda: "raft secret read again" in member.log(since), "the file is read again")


def restart(member: Member) -> None:
    """Kill a member and start it again, so that it must make new links with the current secrets."""
    member.kill()
    member.reap()
    member.start()
    wait_until(member.ready, f"member {member.number} is ready again")


def test_a_secret_changes_without_a_restart_and_members_link_at_each_step(tmp_path: Path) -> None:
    members = make_members(tmp_path)
    for member in members:
        member.arguments = ("--raft-secret-file", str(tmp_path / f"secret{member.number}"))
        write(member, OLD + "\n")
    with running(members) as cluster:
        write(members[0], f"{OLD}\n{NEW}\n")
        # Now the first member knows both secrets, and the other members know only the old secret. All members
        # must still be able to link.
        restart(members[0])
        for member in members[1:]:
            write(member, f"{OLD}\n{NEW}\n")
        write(members[1], NEW)
        # Now the second member knows only the new secret, and the other members know both secrets. All
        # members must still be able to link.
        restart(members[1])
        restart(members[2])
        for member in (members[0], members[2]):
            write(member, NEW)
        restart(members[0])
        cluster.wait_equal()
        since = members[2].log_size()
        Path(members[2].arguments[1]).write_text("short")
        wait_until(
            lambda: "raft secret not taken, the former one goes on" in members[2].log(since), "a warning"
        )
        restart(members[0])
