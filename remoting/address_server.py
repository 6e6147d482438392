"""URL and content of the page on which an address server lists the nameservers of an environment.

This module does no I/O and reads no clock.

Source: MixAll.getWSAddr and DefaultTopAddressing, RocketMQ 4.9.7 and 5.3.3.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from routekeeper.remoting.addresses import address_fault
from routekeeper.remoting.bounds import ADDR_FORM, is_address

#: Largest number of addresses that are used from one answer or from one setting.
ADDRESSES_MAX: Final = 64
_DOMAIN: Final = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
_SUBGROUP: Final = re.compile(r"[A-Za-z0-9._~/-]{1,255}")


def url_of(*, domain: str, subgroup: str, environment: str) -> str:
    """Return the URL of the page on which an address server lists the nameservers of an environment.

    Args:
        domain: Host, or ``host:port``; without a port, the port is 8080.
        environment: Name of the environment; empty for the default environment.

    Raises:
        ValueError: The domain or the subgroup cannot be part of a URL; the message says what is allowed.
    """
    if not _DOMAIN.fullmatch(domain):
        raise ValueError(f"rocketmq.namesrv.domain={domain[:300]} is neither HOST nor HOST:PORT")
    if not _SUBGROUP.fullmatch(subgroup):
        raise ValueError(
            f"rocketmq.namesrv.domain.subgroup={subgroup[:300]}: allowed are letters, digits and ._~/-"
        )
    has_port = ":" in domain.rpartition("]")[2]
    url = f"http://{domain if has_port else f'{domain}:8080'}/rocketmq/{subgroup}"
    return f"{url}-{quote(environment.strip(), safe='')}?nofix=1" if environment.strip() else url


def wrong_address(text: str) -> str:
    """Return the first item in a setting's list that is not an address, and the reason.

    Return an empty text if all items are addresses.
    """
    for part in text.split(";"):
        if part.strip() and not is_address(part.strip()):
            fault = address_fault(part.strip(), form=ADDR_FORM, separator="semicolons")
            return f"{part.strip()[:300]!r} {fault}"
    return ""


def addresses_in(text: str) -> tuple[str, ...]:
    """Return the addresses in the first line of an answer, in order; skip texts that are not addresses."""
    lines = text.strip().splitlines()
    parts = (part.strip() for part in lines[0].split(";")) if lines else ()
    return tuple(dict.fromkeys(part for part in parts if is_address(part)))[:ADDRESSES_MAX]
