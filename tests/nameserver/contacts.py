"""Invariants of the data that a nameserver has about its contacts with brokers (class Liveness)."""

from __future__ import annotations

from routekeeper.nameserver.liveness import Liveness


def check(liveness: Liveness) -> None:
    """Raise AssertionError if ``liveness`` breaks an invariant."""
    contacts, last = liveness._contacts, 0
    unconnected = [broker for broker, contact in contacts.items() if not contact.connected]
    assert list(liveness._unconnected) == unconnected, "unconnected ones are not those"
    for broker, contact in contacts.items():
        assert contact.version > last, f"{broker} lies out of order"
        last = contact.version
        assert not (contact.connected and contact.closing), f"{broker} is connected and closing"
        if contact.connected:
            assert contact.owner is not None, f"{broker} is connected without an owner"
            assert broker in liveness._registered_over.get(contact.owner, ()), f"{broker}'s owner is closed"
