"""Tests of simulated brokers whose stores are restored from a backup while the brokers are listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import actors
from .seams import installed
from .world import World

pytestmark = [pytest.mark.sim, pytest.mark.computes]

HEARTBEAT_S = (5.5, 6.0)
LEASE_S = 30.0
"""Lease in seconds.

The lease is longer than two heartbeats, so that the record of the former process stays listed until the
restored broker has registered twice.
"""
TURN_S = 0.5


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(actors, "BEAT_S", HEARTBEAT_S)
    with installed():
        world = World(1, tmp_path, lease_s=LEASE_S)
        world.open()
        try:
            world.begin()
            yield world
        finally:
            world.close()


def test_a_restored_broker_is_shown_within_two_heartbeats_although_its_record_lives(world: World) -> None:
    broker = world.brokers[0]
    broker.change_topics()
    world.run(TURN_S)
    newest, former = broker.version, broker.backup
    assert former is not None
    assert versions(world) == {newest}
    assert broker.restore(power=True)
    world.run(1.0)
    assert broker.version == former[0]
    assert versions(world) == {newest}, "the first registration may be a late copy"
    assert world.run(HEARTBEAT_S[1] + TURN_S, lambda: versions(world) == {broker.version})
    assert not world.truth.violations
    assert world.truth.count["restored brokers shown"] == 1


def test_a_restored_broker_whose_connections_ended_is_shown_at_once(world: World) -> None:
    broker = world.brokers[0]
    broker.change_topics()
    world.run(TURN_S)
    assert broker.restore()
    assert world.run(2 * TURN_S, lambda: versions(world) == {broker.version} and broker.restored)
    assert not world.truth.violations


def versions(world: World) -> set[object]:
    """Return the data versions that the members list for the first broker."""
    views = (member.look(lambda mode: mode.view_now()) for member in world.members)
    records = (view.record(world.brokers[0].key) for view in views)
    return {None if record is None else record.data_version for record in records}
