"""What the engine asks of the machine around it: links, disk, a background for state images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .log import Op
from .members import Standing


class Ports(Protocol):
    """The engine's way out. Nothing here may call back into the engine before returning."""

    def send(self, member: str, message: bytes) -> bool:
        """Hand a message to the link, in order; False if there is none."""

    def write(self, position: int, ops: list[Op]) -> None:
        """Write to the journal; :meth:`.engine.Engine.durable` follows, in order of position."""

    def save_vote(self, term: int, vote: str | None, *, at_once: bool) -> None:
        """Make term and vote durable before any message leaves that is sent from now on.

        The disk may take its time: nothing else waits for it, unless this is to be done ``at_once``.
        """

    def save_standing(self, standing: Standing) -> None:
        """Make the standing durable before returning."""

    def make_image(self, index: int, term: int, configuration: bytes, encode: Callable[[], bytes]) -> None:
        """Encode and store in the background; ``Images.made`` or ``failed`` follows."""

    def install_image(self, index: int, term: int, configuration: bytes, image: bytearray) -> None:
        """Prepare and store an image from a leader in the background; ``Images.installed`` or
        ``install_failed`` follows.
        """

    def image(self) -> tuple[int, int, int, bytes] | None:
        """Index, term, size and encoded configuration of the newest durable image."""

    def read_image(self, index: int, offset: int, size: int) -> bytes | None:
        """A piece of the image at ``index``; None if it is there no more."""

    def trim(self, index: int) -> None:
        """The journal needs nothing up to ``index`` any more."""

    def follow(self, members: tuple[str, ...]) -> None:
        """Keep links to these from now on; a link to another stays as long as it does by itself."""

    def removed(self, reason: str) -> None:
        """The cluster has removed this member: it must stop, and not start again."""

    def wake(self) -> None:
        """Call :meth:`.engine.Engine.step` soon."""

    def changed(self) -> None:
        """Something in the public state may have changed."""

    def fatal(self, reason: str) -> None:
        """This member must stop."""
