"""Requests to several brokers at the same time, with one time limit for all requests together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from routekeeper.remoting.errors import RemotingError

from ..admin import all_addrs
from ..errors import NotApplied
from ..operation import Operation, read_clock, together
from ..retry import Outcome, outcome_of, partial_failure
from .context import Context
from .options import Arguments
from .targets import chosen, cluster_info, masters_of_cluster

T = TypeVar("T")
#: Largest number of requests at the same time. If the requests were sent one after the other, a broker that
#: does not answer would delay all following requests.
_AT_ONCE: Final = 16
NO_CLUSTER: Final = "Make sure the specified clusterName exists or the name server connected to is correct."


def ask_together(
    context: Context, places: Iterable[str], ask: Callable[[str, float], Operation[T]], *, within_s: float
) -> tuple[dict[str, T], dict[str, RemotingError]]:
    """Ask several brokers or clients concurrently, and return the results and the failures.

    Args:
        places: Addresses of brokers, or client ids. They are the keys of both dicts in the result.
        ask: Operation that asks one broker or client, within the given number of seconds.
        within_s: Time limit in seconds for all requests together. Requests that still wait after
            this time are not sent.
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
    """Raise one error that names all brokers at which a change failed. Without failures, do nothing.

    Args:
        what: The failed change in words, such as "account not deleted".
        of: Number of all brokers that were asked.

    Raises:
        PartlyNotApplied: If the change was certainly not made at the brokers of ``failures``.
        PartlyUnknown: If the change may have been made at some brokers of ``failures``.
    """
    if not failures:
        return
    unknown = any(outcome_of(error) is Outcome.UNKNOWN for error in failures.values())
    raise partial_failure(f"{what}, or outcome unknown," if unknown else what, failures, of=of)


def brokers_of(context: Context, args: Arguments, *, with_slaves: bool = False) -> list[str]:
    """Return the address given with -b, or the masters of the cluster given with -c.

    Args:
        with_slaves: True to return slaves as well.

    Raises:
        UsageError: If neither option is given.
        NotApplied: If the cluster has no brokers.
    """
    if chosen(args) == "b":
        return [args.text("b")]
    info, cluster = cluster_info(context), args.text("c")
    found = list(masters_of_cluster(context, info, cluster, with_slaves=with_slaves).values())
    if with_slaves:
        found = list(all_addrs(info, cluster))
    if not found:
        kind = "broker" if with_slaves else "master"
        raise NotApplied(f"no {kind} in cluster {cluster!r}. {NO_CLUSTER}")
    return found
