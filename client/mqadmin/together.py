"""Requests to several brokers at the same time, within one time limit for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from routekeeper.remoting.errors import RemotingError

from ..admin import all_addrs, masters
from ..errors import NotApplied
from ..operation import Operation, read_clock, together
from ..retry import Outcome, outcome_of, partial_failure
from .context import Context
from .options import Arguments
from .targets import chosen

T = TypeVar("T")
#: Requests under way at a time, so that a broker that does not answer delays no other.
_AT_ONCE: Final = 16
NO_CLUSTER: Final = "Make sure the specified clusterName exists or the name server connected to is correct."


def ask_together(
    context: Context, places: Iterable[str], ask: Callable[[str, float], Operation[T]], *, within_s: float
) -> tuple[dict[str, T], dict[str, RemotingError]]:
    """Ask at each place; return results and failures, both by place.

    Args:
        ask: Asks at one place, within the given seconds.
        within_s: Seconds for all places; a place whose turn comes later is not asked.
    """
    order = list(dict.fromkeys(places))
    found: dict[str, T] = {}
    failures: dict[str, RemotingError] = {}

    def one(place: str, deadline_s: float) -> Operation[None]:
        try:
            left_s = deadline_s - (yield from read_clock()).now_s
            if left_s <= 0:
                raise NotApplied(f"not asked, because the limit of {within_s:g} s was over")
            found[place] = yield from ask(place, left_s)
        except RemotingError as error:
            failures[place] = error

    def all_of_them() -> Operation[None]:
        deadline_s = (yield from read_clock()).now_s + within_s
        yield from together([one(place, deadline_s) for place in order], "mqadmin", at_once=_AT_ONCE)

    context.run(all_of_them())
    return (
        {place: found[place] for place in order if place in found},
        {place: failures[place] for place in order if place in failures},
    )


def raise_failures(what: str, failures: Mapping[str, RemotingError], *, of: int) -> None:
    """Raise one error that names the brokers at which a change was not made, or may not have been made.

    Args:
        what: The failed change in words, such as "account not deleted".

    Raises:
        PartlyNotApplied: At some brokers it was certainly not made.
        PartlyUnknown: At some brokers it may have been made.
    """
    if not failures:
        return
    unknown = any(outcome_of(error) is Outcome.UNKNOWN for error in failures.values())
    raise partial_failure(f"{what}, or outcome unknown," if unknown else what, failures, of=of)


def brokers_of(context: Context, args: Arguments, *, with_slaves: bool = False) -> list[str]:
    """Return the broker of -b, or the masters of the cluster of -c.

    Args:
        with_slaves: Return slaves as well.

    Raises:
        UsageError: Neither was given.
        NotApplied: The cluster has no brokers.
    """
    if chosen(args) == "b":
        return [args.text("b")]
    info, cluster = context.run(context.client.admin.cluster_info()), args.text("c")
    found = list(all_addrs(info, cluster) if with_slaves else masters(info, cluster).values())
    if not found:
        kind = "broker" if with_slaves else "master"
        raise NotApplied(f"no {kind} in cluster {cluster!r}. {NO_CLUSTER}")
    return found
