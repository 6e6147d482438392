"""``--mode raft``: the route table of all nameservers is one replicated log.

A process decides a request on its own copy of the table, proposes the command to the leader, and learns the
verdict when the entry passes through its own ``apply``; a command that has moved by then is decided again.
The leader judges brokers by the reports of all members. Here belongs what is above the engine and only the
raft mode needs. Everything runs on one event loop.

``mode.py`` makes four components, which hold sockets, timers and callbacks. They decide by pure modules:
``proposals.py``, ``barriers.py``, ``failure_detector.py`` and ``reporter.py``.

    mode.py            Replicated: implements Consistency, Mode and the engine's StateMachine, wires the rest
    proposer.py        a registration or another change, from its decision to its answer
    leader.py          the leader's half: appends proposals, answers barriers, judges brokers
    reader.py          reads that wait: for contact with a leader, or for a barrier
    reports.py         evidence of brokers at this member, on its way to the leader

    proposals.py       proposals that wait for their outcome; in which order the leader appends
    barriers.py        what makes a read linearizable
    reporter.py        what a member reports of brokers
    failure_detector.py   how the leader judges them
    peer_messages.py   messages between members above the engine, and their bytes

    surroundings.py    what all components share
    observer.py        what the simulator watches
    kv_file.py         RocketMQ's KV file: imported once, then written
    snapshots.py       the state in place of log entries
    raft_settings.py   the engine's settings
"""

from .mode import Replicated
from .raft_settings import raft_config
from .reader import ANSWER_MARGIN_S

__all__ = ["ANSWER_MARGIN_S", "Replicated", "raft_config"]
