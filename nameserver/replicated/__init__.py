"""``--mode raft``: the route table of all nameservers is one replicated log.

A process decides a request on its own copy of the table, proposes the command to the leader, and learns the
verdict when the entry passes through its own ``apply``; what has moved by then is decided again. Liveness is
judged by the leader over the reports of all members. Pure are ``proposals.py``, ``barriers.py``,
``failure_detector.py``, ``reporter.py`` and ``peer_messages.py``; the others carry values
between them, the raft engine and the server. Here belongs what is above the engine and only the raft mode
needs. Everything runs on one event loop.

    mode.py            Replicated: implements Consistency, Mode and the engine's StateMachine, wires the rest
    surroundings.py    what all parts share
    contact.py         contact with a leader, and who waits for it
    reader.py          reads that wait: for contact, or for a barrier; a leader's answers to barriers
    registrations.py   a registration from its decision to its answer; without the log where that is allowed
    proposer.py        a command from its proposal to its verdict
    leader.py          what a member holds while it leads; the leader's side of writes
    reports.py         liveness: heard, reported, judged
    reporter.py        a member's side of liveness
    failure_detector.py   the leader's side
    proposals.py       what waits for its verdict; in which order the leader appends
    barriers.py        what makes a read linearizable
    peer_messages.py   what members say to each other above the engine, and its bytes
    observer.py        what a member tells whoever watches it
    kv_file.py         RocketMQ's KV file: imported once, then written
    snapshots.py       the state image
    raft_settings.py   the engine's settings
"""

from .contact import ANSWER_MARGIN_S
from .mode import Replicated
from .raft_settings import raft_config

__all__ = ["ANSWER_MARGIN_S", "Replicated", "raft_config"]
