"""Requests to several brokers beside each other, within one time for all of them."""

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
#: Requests under way at a time: a broker that does not answer holds up no other.
_AT_ONCE: Final = 16
NO_CLUSTER: Final = "Make sure the specified clusterName exists or the name server connected to is correct."


def ask_together(
    context: Context, places: Iterable[str], ask: Callable[[str, float], Operation[T]], *, within_s: float
) -> tuple[dict[str, T], dict[str, RemotingError]]:
    """Ask at each place; return the results and the failures, both by place.

    Args:
        ask: Asks at one place, for no longer than so many seconds.
        within_s: For all of them; a place whose turn does not come in time is not asked.
    """
    order = list(dict.fromkeys(places))
    found: dict[str, T] = {}
    failures: dict[str, RemotingError] = {}

    def one(place: str, deadline_s: float) -> Operation[None]:
        try:
            left_s = deadline_s - (yield from read_clock()).now_s
            if left_s <= 0:
                raise NotApplied(f"not asked, because {within_s:g} s were over")
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
    """Raise one error that names the brokers at which a change was not made, or may not have been.

    Args:
        what: The change, as what is not done: "account not deleted".

    Raises:
        PartlyNotApplied: If at some it was certainly not made.
        PartlyUnknown: If it may have been made at one of these.
    """
    if not failures:
        return
    unknown = any(outcome_of(error) is Outcome.UNKNOWN for error in failures.values())
    raise partial_failure(f"{what}, or unknown whether," if unknown else what, failures, of=of)


def brokers_of(context: Context, args: Arguments, *, with_slaves: bool = False) -> list[str]:
    """Return the broker that -b names, or those of the cluster of -c.

    Args:
        with_slaves: Not only the masters.

    Raises:
        UsageError: If neither was given.
        NotApplied: If the cluster has none.
    """
    if chosen(args) == "b":
        return [args.text("b")]
    info, cluster = context.run(context.client.admin.cluster_info()), args.text("c")
    found = list(all_addrs(info, cluster) if with_slaves else masters(info, cluster).values())
    if not found:
        kind = "broker" if with_slaves else "master"
        raise NotApplied(f"no {kind} in cluster {cluster!r}. {NO_CLUSTER}")
    return found
