"""Tests of the fuzzer: a short run, all inputs that once caused faults, and faults that it must detect."""

from __future__ import annotations

import os
import random
import zlib

import pytest

from routekeeper.remoting.command import RemotingCommand
from tests.fuzz import run as module
from tests.fuzz import served
from tests.fuzz.inputs import SEEDS_OF, corpus, mutate
from tests.fuzz.run import HEAP_BASE, HEAP_PER_BYTE, Harm, judge, run
from tests.fuzz.targets import TARGETS, family

CORPUS = dict(corpus())


@pytest.mark.slow
@pytest.mark.parametrize("name", CORPUS)
def test_what_once_did_harm_is_refused_or_read_cheaply(name: str) -> None:
    for target in TARGETS:
        judge(target, CORPUS[name], heap=True)


def slow(data: bytes) -> None:
    for _ in range(1_000_000 * len(data)):
        pass


PLANTS = {
    "another exception": (lambda data: [][1], b"", "IndexError"),
    "time": (slow, b"xxxx", "ms of CPU, allowed"),
    "memory": (lambda data: zlib.decompress(data), zlib.compress(bytes(4 << 20)), "bytes allocated"),
}


@pytest.mark.parametrize(("plant", "data", "said"), PLANTS.values(), ids=PLANTS)
def test_planted_harm_is_noticed(
    plant: object, data: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TARGETS, "plant", plant)
    with pytest.raises(Harm, match=said):
        judge("plant", data, heap=True)


_FIRST_MEMBER = SEEDS_OF["raft-member"][1]
BEHIND_PORTS = {
    "wire": (
        "wire",
        RemotingCommand(code=106, ext_fields={}).encode(),
        "routekeeper.nameserver.wire.server.decide",
    ),
    "wire behind TLS": (
        "wire-secured",
        RemotingCommand(code=106, ext_fields={}).encode(),
        "routekeeper.nameserver.wire.server.decide",
    ),
    "handshake": (
        "wire-handshake",
        b"\x01\x00\x00\x05hello",
        "routekeeper.remoting.transport.tls.Pipe.shake",
    ),
    "http": ("http", SEEDS_OF["http"][6], "routekeeper.nameserver.http.app.check_query"),
    "stranger": (
        "raft-stranger",
        SEEDS_OF["raft-stranger"][0],
        "routekeeper.nameserver.raft.links.auth.Handshake._take_hello",
    ),
    "member": ("raft-member", _FIRST_MEMBER, "routekeeper.nameserver.raft.consensus.messages.decode"),
    "on the loop": ("raft-member", _FIRST_MEMBER, "routekeeper.nameserver.raft.consensus.engine.Engine.step"),
    "broker": (
        "broker-310",
        SEEDS_OF["arguments"][0],
        "routekeeper.broker.tables.state.BrokerState.message_id",
    ),
    "nameserver": (
        "asked-103",
        SEEDS_OF["arguments"][0],
        "routekeeper.nameserver.registration.RegisterBrokerFields.parse",
    ),
}


@pytest.mark.parametrize(("target", "data", "place"), BEHIND_PORTS.values(), ids=BEHIND_PORTS)
def test_what_is_raised_behind_a_port_is_noticed(
    target: str, data: bytes, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(*args: object, **named: object) -> object:
        raise ZeroDivisionError

    judge(target, data, heap=False)
    for _ in range(200):  # these inputs cause log lines, which must not hide a later error
        judge(target, b"\x00\x00\x00\x04garbage", heap=False)
    with monkeypatch.context() as patch:
        patch.setattr(place, planted)
        with pytest.raises(Harm, match=r"ZeroDivisionError|HTTP/1\.1 500"):
            judge(target, data, heap=False)
    judge(target, data, heap=False)


def test_inputs_of_a_family_reach_what_is_behind_the_first_check() -> None:
    """Initial inputs are valid, and mutations keep their form.

    Each of five targets must accept at least one of its initial inputs. Of 40 mutated inputs, more than half
    must still contain the argument ``topic``.
    """
    rng = random.Random(1)
    read = {
        name: sum(judge(name, data, heap=False).outcome == "read" for data in SEEDS_OF[family(name)])
        for name in ("broker-310", "asked-105", "peer-message", "peer-exchange", "peer-command")
    }
    assert all(read.values()), read
    changed = [mutate(rng, list(SEEDS_OF["arguments"]), "arguments") for _ in range(40)]
    assert sum(b"topic=" in data for data in changed) > 20


def test_a_limit_that_is_taken_out_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = CORPUS["inflates-to-zeros"]
    judge("served-103", bomb, heap=True)
    monkeypatch.setattr("routekeeper.remoting.registration.REGISTER_RATIO_MAX", 10**9)
    assert HEAP_BASE + HEAP_PER_BYTE * len(bomb) < 1 << 20
    with pytest.raises(Harm, match="bytes allocated"):
        judge("served-103", bomb, heap=True)


def test_a_failure_names_seed_input_and_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TARGETS", {"plant": lambda data: 1 // 0})
    monkeypatch.setattr("tests.fuzz.run.judge", _judge_plant)
    with pytest.raises(Harm, match="seed 7, input 1, target plant"):
        run(7, inputs=3)


def _judge_plant(name: str, data: bytes, *, heap: bool) -> object:
    raise Harm("ZeroDivisionError")


def test_the_same_seed_tries_the_same_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[list[tuple[str, bytes]]] = [[], []]
    for inputs in tried:

        def note(name: str, data: bytes, *, heap: bool, inputs: list[tuple[str, bytes]] = inputs) -> object:
            inputs.append((name, data))
            return module.Cost(cpu_s=0.0, heap=0, outcome="read")

        monkeypatch.setattr(module, "judge", note)
        run(3, inputs=200)
    assert tried[0] == tried[1]


@pytest.mark.fuzz
def test_no_request_holds_a_real_nameserver_for_long() -> None:
    """No request costs a real nameserver too much CPU time or memory.

    ``python -m tests.fuzz --served`` tests more: more topics, both modes and hostile clients.
    """
    findings = served.run_served("independent", topics=2000, hostile=0)
    print(*findings.lines(), sep="\n")
    assert not findings.missed
    assert findings.requests > 500


@pytest.mark.slow
def test_a_turn_without_end_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with very small limits on CPU time and memory must report that requests exceed them."""
    monkeypatch.setattr("tests.fuzz.served.HOLD_LARGE_S", 1e-5)
    monkeypatch.setattr("tests.fuzz.served.RESIDENT_MAX", 1 << 20)
    dear = [one for one in served.inputs() if one.code == 103 and one.name == "one MiB of number keys"]
    monkeypatch.setattr("tests.fuzz.served.inputs", lambda: iter(dear))
    missed = served.run_served("independent", topics=100, hostile=0).missed
    assert [text for text in missed if "allowed are 0" in text]
    assert [text for text in missed if "were resident" in text]


# Keep this test at the end, because its requests may change the state of the servers in this process.
@pytest.mark.fuzz
def test_new_inputs_do_no_harm() -> None:
    seed = int.from_bytes(os.urandom(4))
    figures = run(seed, seconds=float(os.environ.get("ROUTEKEEPER_FUZZ_S", "30")))
    print(f"seed {seed}", *figures.lines(), sep="\n")
    assert figures.inputs > 500
