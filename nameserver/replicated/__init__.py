"""``--mode raft``: the route table of all nameservers is one replicated log.

A process decides a request on its own copy of the table and proposes the command to the leader. It learns the
outcome when the entry passes through its own ``apply``; if the record has moved by then, it decides again.
The leader judges brokers by the reports of all members. Here belongs code above the engine
that only the raft mode needs. Everything runs on one event loop.

``mode.py`` makes four components, which hold sockets, timers and callbacks. Pure modules decide for them:
``proposals.py``, ``barriers.py``, ``failure_detector.py`` and ``reporter.py``.

    mode.py            Replicated: implements Consistency, Mode and the engine's StateMachine, wires the rest
    proposer.py        a registration or another change, from its decision to its answer
    leader.py          the leader's work: appends proposals, answers barriers, judges brokers
    reader.py          reads that wait: for contact with a leader, or for a barrier
    reports.py         collects evidence about brokers at this member, and sends it to the leader

    proposals.py       proposals that wait for their outcome; the order in which the leader appends them
    barriers.py        the rules that make a read linearizable
    reporter.py        a member's reports of brokers
    failure_detector.py   the leader's judgement of brokers
    peer_messages.py   messages between members above the engine, and their bytes

    surroundings.py    state that all components share
    observer.py        hooks for the simulator
    under_way.py       the entry that is being applied, for reads that do not wait for it
    kv_file.py         RocketMQ's KV file: imported once, then written
    snapshots.py       the state that is stored or sent in place of log entries
    raft_settings.py   the engine's settings
"""

from .mode import Replicated
from .raft_settings import raft_config
from .reader import ANSWER_MARGIN_S

__all__ = ["ANSWER_MARGIN_S", "Replicated", "raft_config"]
