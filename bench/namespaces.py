"""The network namespaces, addresses and routing rules of a cluster whose links are cut by the kernel.

This module does no I/O and reads no clock. Other code executes the commands that this module returns.

Each server and each broker has a network namespace of its own. All clients together have one namespace. A
router, which is also a namespace, connects all these namespaces with each other and with the harness (the
program that runs the benchmark). Each connection to the router is a pair of interfaces. The router knows a
packet's sender by the interface, and the packet's receiver by the address.

The clients form two groups (:data:`routekeeper.bench.cuts.SIDES`), because a network partition puts the
groups on different sides. All clients are in one process, but each group has a network interface of its own.
Each server and broker has a second address, which only the second group uses. Packets to this address leave
by the second group's interface.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from routekeeper.bench.cuts import SIDES
from routekeeper.bench.links import Direction

HARNESS: Final = "harness"
#: Allowed values of N in the network 198.19.N.0/23 of a cluster. RFC 2544 reserves this range for benchmarks.
SUBNETS: Final = range(0, 256, 2)
HELD: Final = "held"
"""Name of the device in a sender's namespace that delays packets."""
#: Priority of our routing rules. The kernel applies rules with this number before its own rules for the
#: tables main and default.
_PREFERENCE: Final = 1000
#: Number of the routing table that sends packets to the router after their delay.
_ONWARD: Final = 100


def network(subnet: int) -> str:
    """Return the network that contains all addresses of a cluster."""
    return f"198.19.{subnet}.0/23"


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespaces:
    """Network namespaces of a cluster's processes.

    Attributes:
        tag: Text that makes the names of this cluster unique. It is also the name of the harness's interface.
        names: Names of servers and brokers.
    """

    tag: str
    subnet: int
    names: Sequence[str]

    @property
    def router(self) -> str:
        return f"{self.tag}-router"

    def inside(self, name: str) -> str:
        """Return the name of the namespace in which a process runs."""
        return f"{self.tag}-{'clients' if name in SIDES else name}"

    def host(self, name: str) -> str:
        return self._address(name, 2)

    def dialled(self, dialler: str, acceptor: str) -> str:
        """Return the address to which a process must connect to reach another process."""
        by_second = dialler == SIDES[1] and acceptor in self.names
        return self._second(acceptor) if by_second else self.host(acceptor)

    def rules(self, directions: Sequence[Direction]) -> list[str]:
        """Return rules for the router's namespace that drop the packets of these directions."""
        return [
            f"pref {_PREFERENCE} iif {sender} to {self.dialled(sender, receiver)} blackhole"
            for sender, receiver in directions
        ]

    def forwarding(self, sender: str) -> str:
        """Return a shell command that makes a namespace forward its own packets after their delay."""
        settings = {"ip_forward": "1", f"conf/{HELD}/accept_local": "1"}
        settings |= {f"conf/{each}/rp_filter": "0" for each in ("all", HELD, sender)}
        return " && ".join(f"echo {value} > /proc/sys/net/ipv4/{name}" for name, value in settings.items())

    def onward(self, sender: str) -> list[str]:
        """Return lines for ``ip`` that route packets onward after their delay.

        The lines must be executed once in each namespace.
        """
        return [
            f"route add default via {self._gate(sender)} dev {sender} table {_ONWARD}",
            f"rule add pref {_PREFERENCE} iif {HELD} lookup {_ONWARD}",
        ]

    def held_back(self, sender: str, receivers: Sequence[str]) -> list[str]:
        """Return lines for ``ip`` that route packets to the device that delays them.

        The device must exist before these lines are executed.
        """
        return [
            f"link set {HELD} up",
            *(
                f"route replace {self.dialled(sender, receiver)} dev {HELD} src {self.host(sender)}"
                for receiver in receivers
            ),
        ]

    def commands(self) -> Iterator[tuple[str | None, list[str]]]:
        """Yield lines for ``ip``, each with its namespace (None for the harness's own namespace).

        Before these lines are executed, the router and the harness's interface must exist. The harness's
        route to all addresses of the cluster must lead to this interface.
        """
        ends = [*self.names, *SIDES]
        yield (
            None,
            [
                *(f"netns add {space}" for space in dict.fromkeys(map(self.inside, ends))),
                *(
                    f"link add {end} netns {self.router} type veth peer name {end} netns {self.inside(end)}"
                    for end in ends
                ),
            ],
        )
        yield self.router, [line for end in (HARNESS, *ends) for line in self._at_router(end)]
        for name in self.names:
            default = f"route add default via {self._gate(name)} dev {name} src {self.host(name)}"
            yield (
                self.inside(name),
                [*self._interface(name), f"address add {self._second(name)} dev {name}", default],
            )
        first, second = SIDES
        yield (
            self.inside(first),
            [
                *self._interface(first),
                *self._interface(second),
                f"route add default via {self._gate(first)} dev {first} src {self.host(first)}",
                f"route add 198.19.{self.subnet + 1}.0/24 via {self._gate(second)} dev {second}"
                f" src {self.host(second)}",
            ],
        )
        host, gate = self.host(HARNESS), self._gate(HARNESS)
        yield (
            None,
            [
                f"address add {host} peer {gate} dev {self.tag}",
                f"route replace {network(self.subnet)} via {gate} dev {self.tag} src {host}",
            ],
        )

    def _address(self, name: str, place: int, *, second: bool = False) -> str:
        number = (HARNESS, *self.names, *SIDES).index(name)
        return f"198.19.{self.subnet + second}.{4 * number + place}"

    def _second(self, name: str) -> str:
        return self._address(name, 2, second=True)

    def _gate(self, name: str) -> str:
        """Return the router's own address on the link between the router and a process."""
        return self._address(name, 1)

    def _interface(self, name: str) -> list[str]:
        up = ["link set lo up", f"link set {name} up"]
        return [*up, f"address add {self.host(name)} peer {self._gate(name)} dev {name}"]

    def _at_router(self, name: str) -> list[str]:
        lines = [f"link set {name} up", f"address add {self._gate(name)} peer {self.host(name)} dev {name}"]
        if name in self.names:
            lines.append(f"route add {self._second(name)} via {self.host(name)} dev {name}")
        return lines
