"""``--mode raft``: all nameservers share one route table through a replicated log.

A process decides a request on its own copy of the table, and proposes the resulting command to the leader.
The process learns the outcome when its own ``apply`` handles the entry. If another entry has changed the
broker's record in the meantime, the process decides the request again. The leader decides which brokers to
evict; for this, all members send reports to the leader. Everything runs on one event loop.

Code that only the raft mode needs, and that uses the engine, belongs here.

``mode.py`` makes four components, which hold sockets, timers and callbacks: Proposer, Leader, Reader and
Reports. Four modules without I/O make the decisions of these components: ``proposals.py``, ``barriers.py``,
``failure_detector.py`` and ``reporter.py``.

    mode.py            Replicated: implements Consistency, Mode and the engine's StateMachine
    proposer.py        a registration or another change, from its decision to its answer
    leader.py          the leader's work: appends proposals, answers barriers, evicts brokers
    reader.py          reads that wait: for contact with a leader, or for a barrier
    reports.py         collects last-seen times and connections of brokers, and sends them to the leader

    proposals.py       proposals that wait for their outcome; the order in which the leader appends them
    barriers.py        the rules that make a read linearizable
    reporter.py        a member's reports of brokers
    failure_detector.py   the leader's decisions about brokers to evict
    peer_messages.py   messages between members outside the log, and their encoding

    surroundings.py    state that all components share
    observer.py        hooks for the simulator
    under_way.py       tells which reads need not wait for the entry that is being applied
    kv_file.py         RocketMQ's KV file: imported once, then only written
    snapshots.py       the state that is stored, or sent to a member, in place of log entries
    raft_settings.py   the engine's settings
"""

from .mode import Replicated
from .raft_settings import raft_config
from .reader import ANSWER_MARGIN_S

__all__ = ["ANSWER_MARGIN_S", "Replicated", "raft_config"]
