"""Tests of the nameserver's storage code on a simulated disk.

A power cut of the simulated disk (see :mod:`disk`) may lose any part of the data that was not synced. Each
call of the disk may fail. If the storage code omits one of its syncs, a test must fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from routekeeper.nameserver.disk.files import Files, StorageFull
from routekeeper.nameserver.raft.consensus.log import OP_ENTRY, REGULAR, Op
from routekeeper.nameserver.raft.storage.identity import DataDirectory
from routekeeper.nameserver.raft.storage.images import Snapshots
from routekeeper.nameserver.raft.storage.journal import Journal
from routekeeper.nameserver.raft.types import RaftConfig, RaftStartError

from .disk import Crashed, Disk, DiskFile, DiskFiles, User

TOP = Path("/sim")
TRIES = 40
"""Number of power cuts in each test. Each power cut loses another part of the unsynced data."""


class Machine:
    """A disk, and the processes that use the disk one after the other."""

    def __init__(self, seed: int, omitted: tuple[str, str] = ("", "")) -> None:
        self.disk = Disk(TOP, self, random.Random(seed))
        self._omitted = omitted

    def crashed(self, *, power: bool) -> None:
        self.disk.stop(power=power)

    def complain(self, text: str) -> None:
        raise AssertionError(text)

    def files(self) -> Files:
        """Return the disk's files for a new process."""
        user = User(self.disk)
        return _Careless(lambda: user, *self._omitted)

    def cut_power(self) -> None:
        self.disk.stop(power=True)

    def kill(self) -> None:
        self.disk.stop(power=False)


class _Careless(DiskFiles):
    """Files on the simulated disk that omit one kind of sync for paths whose names begin with ``name``."""

    def __init__(self, here: Callable[[], User], what: str, name: str) -> None:
        super().__init__(here)
        self._what, self._name = what, name

    def _omits(self, what: str, path: Path) -> bool:
        return self._what == what and path.name.startswith(self._name)

    def open(self, path: Path, *, write: bool = False, new: bool = False, durable: bool = False) -> DiskFile:
        durable = durable and not self._omits("durable", path)
        file = super().open(path, write=write, new=new, durable=durable)
        if self._omits("sync", path):
            file.sync = lambda: None  # type: ignore[method-assign]
        return file

    def sync_directory(self, path: Path) -> None:
        if not self._omits("directory", path):
            super().sync_directory(path)


def config(durability: str = "fsync") -> RaftConfig:
    peers = ("a:1", "b:1", "c:1")
    return RaftConfig(me="a:1", peers=peers, listen=None, data_dir=TOP / "data", durability=durability)  # type: ignore[arg-type]


def entry(index: int) -> Op:
    return (OP_ENTRY, index, 1, REGULAR + b"%d" % index * 300)


@dataclass
class Known:
    """Acknowledged data, which must therefore exist after the next start."""

    vote: tuple[int, str | None] = (0, None)
    entries: int = 1
    voter: bool = False
    image: int = 0
    instance: str = ""


@dataclass
class Life:
    """One process with a member's storage, which it opens in the same order as a member."""

    files: Files
    durability: str = "fsync"
    known: Known = field(default_factory=Known)

    def open(self) -> Life:
        self.directory = DataDirectory(config(self.durability), self.files)
        self.vote = self.directory.load_vote()
        self.snapshots = Snapshots(self.directory.raft, self.files)
        self.found = self.snapshots.recover()
        self.journal = Journal(self.directory.raft, sync=self.durability == "fsync", files=self.files)
        self.doubted = self.directory.doubted
        self.replay, _ = self.journal.recover(doubted=self.doubted)
        self.directory.begin()
        self.journal.keep_end()
        return self

    def append(self, count: int = 3) -> None:
        first = self.known.entries + 1
        self.journal.append([entry(index) for index in range(first, first + count)])
        self.known.entries += count
        self.journal.mark_end()

    def save_vote(self, term: int, vote: str) -> None:
        self.directory.save_vote(term, vote)
        self.known.vote = (term, vote)

    def become_voter(self) -> None:
        self.directory.become(replace(self.directory.standing, voter=True))
        self.directory.standing_to_save()()
        self.known.voter = True

    def take_image(self) -> None:
        index = self.known.entries
        self.journal.rotate()
        self.snapshots.store(index, 1, b"", b"state" * 500)
        self.known.image = index
        self.journal.trim(index)

    def stop(self) -> None:
        self.journal.close()
        self.directory.end()
        self.directory.close()

    def check(self, known: Known) -> None:
        """Check that all acknowledged data exists."""
        assert self.doubted or not self.journal.shortened
        term, vote = self.vote
        assert term >= known.vote[0]
        assert term > known.vote[0] or vote == known.vote[1], "a vote is lost"
        image = self.found[0].index if self.found is not None else 0
        assert image >= known.image, "an image is lost"
        last = self.replay.base_index + len(self.replay.entries) if self.replay.base_index is not None else 1
        assert max(last, image) >= known.entries, "entries are lost"
        if self.replay.base_index is not None:
            assert self.replay.base_index <= max(image, 1), "the journal does not continue the image"
        assert self.directory.standing.voter >= known.voter, "a standing is lost"
        assert not known.instance or self.directory.standing.instance == known.instance, "another one"


def everything(life: Life) -> None:
    """Make each kind of write that a member makes, at least once."""
    life.known.instance = life.directory.standing.instance
    life.become_voter()
    life.save_vote(3, "b:1")
    life.append()
    life.take_image()
    life.append()
    life.save_vote(4, "c:1")
    life.append()
    life.take_image()
    life.append()


# -- guarantees of the storage that hold after a call has returned


def a_new_directory(machine: Machine) -> Callable[[], None]:
    life = Life(machine.files()).open()
    known = Known(instance=life.directory.standing.instance)
    machine.cut_power()
    return lambda: Life(machine.files()).open().check(known)


def a_directory_just_made(machine: Machine) -> Callable[[], None]:
    DataDirectory(config(), machine.files())
    machine.cut_power()
    return lambda: Life(machine.files()).open().check(Known())


def a_vote(machine: Machine) -> Callable[[], None]:
    life = Life(machine.files()).open()
    life.save_vote(3, "b:1")
    machine.cut_power()
    return lambda: Life(machine.files()).open().check(life.known)


def a_standing(machine: Machine) -> Callable[[], None]:
    life = Life(machine.files()).open()
    life.become_voter()
    machine.cut_power()
    return lambda: Life(machine.files()).open().check(life.known)


def entries(machine: Machine) -> Callable[[], None]:
    life = Life(machine.files()).open()
    life.append()
    life.append()
    machine.cut_power()
    return lambda: Life(machine.files()).open().check(life.known)


def entries_in_a_later_segment(machine: Machine) -> Callable[[], None]:
    life = Life(machine.files()).open()
    life.append()
    life.journal.rotate()
    life.append()
    machine.cut_power()
    return lambda: Life(machine.files()).open().check(life.known)


def an_earlier_segment(machine: Machine) -> Callable[[], None]:
    """Check that a power cut loses entries only of the last segment, with durability ``journal``."""
    life = Life(machine.files(), "journal").open()
    life.append()
    known = replace(life.known)
    life.journal.rotate()
    life.append()
    machine.cut_power()
    return lambda: Life(machine.files(), "journal").open().check(known)


def a_doubtful_start(machine: Machine) -> Callable[[], None]:
    """Check that a member with durability ``journal`` starts after any power cut.

    The member must know that it may lack entries.
    """
    life = Life(machine.files(), "journal").open()
    life.become_voter()
    life.append(20)
    machine.cut_power()

    def check() -> None:
        again = Life(machine.files(), "journal").open()
        assert again.doubted
        assert not again.directory.standing.voter
        assert again.directory.standing.doubtful

    return check


def an_image(machine: Machine) -> Callable[[], None]:
    life = Life(machine.files()).open()
    life.append()
    life.take_image()
    machine.cut_power()
    return lambda: Life(machine.files()).open().check(life.known)


def what_a_killed_life_wrote(machine: Machine) -> Callable[[], None]:
    """Check that entries which a member reads from its journal after a kill survive a later power cut.

    The member counts such entries as durable, so it must sync them after it has read them.
    """
    life = Life(machine.files(), "journal").open()
    life.append()
    machine.kill()
    again = Life(machine.files(), "fsync").open()
    again.check(life.known)
    machine.cut_power()
    return lambda: Life(machine.files(), "fsync").open().check(life.known)


def names_that_a_killed_life_made(machine: Machine) -> Callable[[], None]:
    """Check that a process syncs the file names of an earlier process that was killed before it did this."""
    life = Life(machine.files()).open()
    life.append()
    names = machine.files()
    names.sync_directory = lambda path: None  # type: ignore[method-assign]
    life.journal._files = names
    life.journal.rotate()
    machine.kill()
    again = Life(machine.files(), known=life.known).open()
    again.append()
    machine.cut_power()
    return lambda: Life(machine.files()).open().check(again.known)


def a_clean_stop(machine: Machine) -> Callable[[], None]:
    life = Life(machine.files(), "journal").open()
    life.become_voter()
    life.append(20)
    life.stop()
    machine.cut_power()

    def check() -> None:
        again = Life(machine.files(), "journal").open()
        again.check(life.known)
        assert not again.doubted

    return check


def the_mark_of_a_clean_stop_is_gone(machine: Machine) -> Callable[[], None]:
    life = Life(machine.files(), "journal").open()
    life.become_voter()
    life.stop()
    again = Life(machine.files(), "journal", life.known).open()
    again.append(20)
    machine.cut_power()

    def check() -> None:
        assert Life(machine.files(), "journal").open().doubted

    return check


def a_shorter_journal_after_a_clean_stop(machine: Machine) -> Callable[[], None]:
    """Check that a member notices if its journal became shorter between a clean stop and the next start."""
    life = Life(machine.files()).open()
    life.become_voter()
    life.append()
    kept = life.journal._size
    life.append()
    life.stop()
    machine.cut_power()

    def check() -> None:
        ((_, path),) = Journal.segments_in(machine.files(), TOP / "data" / "raft")
        machine.files().open(path, write=True).truncate(kept)
        again = Life(machine.files())
        again.open()
        assert again.journal.shortened

    return check


Promise = Callable[[Machine], Callable[[], None]]
PROMISES: tuple[Promise, ...] = (
    *(a_new_directory, a_directory_just_made, a_vote, a_standing, entries, entries_in_a_later_segment),
    *(
        an_earlier_segment,
        a_doubtful_start,
        an_image,
        what_a_killed_life_wrote,
        names_that_a_killed_life_made,
        a_clean_stop,
    ),
    the_mark_of_a_clean_stop_is_gone,
    a_shorter_journal_after_a_clean_stop,
)
OMITTED: tuple[tuple[str, str, Promise], ...] = (
    ("directory", TOP.name, a_new_directory),
    ("directory", "data", a_new_directory),
    ("sync", "identity.json", a_new_directory),
    ("sync", "vote.tmp", a_directory_just_made),
    ("sync", "vote", a_vote),
    ("sync", "standing", a_standing),
    ("durable", "journal", entries),
    ("directory", "raft", entries_in_a_later_segment),
    ("sync", "journal", an_earlier_segment),
    ("sync", "journal", a_doubtful_start),
    ("sync", "snapshot", an_image),
    ("sync", "journal", what_a_killed_life_wrote),
    ("directory", "raft", names_that_a_killed_life_made),
    ("sync", "journal", a_clean_stop),
    ("sync", "standing", the_mark_of_a_clean_stop_is_gone),
    ("sync", "end", a_shorter_journal_after_a_clean_stop),
)
"""Syncs that a test leaves out: kind, name of the file or folder, and the function that must then fail."""


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_what_is_promised_survives_every_cut_of_power(promise: Promise) -> None:
    for seed in range(TRIES):
        promise(Machine(seed))()


@pytest.mark.parametrize(
    ("what", "name", "promise"), OMITTED, ids=[f"{what} of {name}, {p.__name__}" for what, name, p in OMITTED]
)
def test_a_sync_that_is_left_out_is_missed(what: str, name: str, promise: Promise) -> None:
    """Check that the function ``promise`` fails if the storage code omits one sync.

    The omitted sync has the kind ``what`` and concerns the file or folder ``name``. In one of several tries,
    a power cut must then lose data or prevent the next start.
    """
    for seed in range(TRIES):
        try:
            promise(Machine(seed, (what, name)))()
        except (AssertionError, RaftStartError):
            return
    pytest.fail(f"{promise.__name__} does without the {what} of {name}")


# -- calls that fail


def _calls_of(work: Callable[[Life], None], durability: str) -> int:
    machine = Machine(0)
    work(Life(machine.files(), durability).open())
    return machine.disk.calls


@pytest.fixture(scope="module")
def calls() -> int:
    return _calls_of(everything, "fsync")


def _play(machine: Machine, known: Known) -> BaseException | None:
    life = Life(machine.files(), known=known)
    try:
        life.open()
        everything(life)
    except (OSError, StorageFull, Crashed, RaftStartError) as error:
        return error
    return None


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
def test_a_crash_in_any_call_loses_nothing_that_was_said(calls: int, power: bool) -> None:
    crashes = 0
    for call in range(1, calls + 1):
        machine, known = Machine(call), Known()
        machine.disk.crash_in, machine.disk.crash_cuts_power = call, power
        ended = _play(machine, known)
        crashes += isinstance(ended, Crashed)
        assert ended is None or isinstance(ended, Crashed)
        machine.disk.crash_in = 0
        Life(machine.files()).open().check(known)
    # Some runs end before the crash, because short writes change the number of calls.
    assert crashes > calls * 0.8


def test_an_error_in_any_call_ends_a_life_and_loses_nothing_that_was_said(calls: int) -> None:
    for call in range(1, calls + 1):
        machine, known = Machine(call), Known()
        machine.disk.fail_in = call
        ended = _play(machine, known)
        assert ended is None or not isinstance(ended, Crashed)
        machine.disk.fail_in = 0
        machine.cut_power()
        Life(machine.files()).open().check(known)


def test_a_disk_that_becomes_full_loses_nothing_and_goes_on_when_there_is_room(calls: int) -> None:
    for call in range(1, calls + 1):
        machine, known = Machine(call), Known()
        real = machine.disk.call

        def fills(
            what: str,
            user: User,
            *,
            real: Callable[[str, User], bool] = real,
            disk: Disk = machine.disk,
            at: int = call,
        ) -> bool:
            disk.full = disk.calls + 1 >= at
            return real(what, user)

        machine.disk.call = fills  # type: ignore[method-assign]
        life, said = Life(machine.files(), known=known), ""
        try:
            life.open()
            everything(life)
        except (OSError, StorageFull, RaftStartError) as error:
            said = str(error)
        assert "No space" in said or call > calls * 0.9
        machine.disk.call = real  # type: ignore[method-assign]
        machine.disk.full = False
        if hasattr(life, "replay"):  # if the member had started, it must continue after the error
            life.append()
            life.save_vote(9, "b:1")
        machine.cut_power()
        Life(machine.files()).open().check(known)


def test_votes_and_standing_need_no_room() -> None:
    machine = Machine(1)
    life = Life(machine.files()).open()
    machine.disk.full = True
    life.become_voter()
    life.save_vote(5, "b:1")
    machine.cut_power()
    machine.disk.full = False
    Life(machine.files()).open().check(life.known)
