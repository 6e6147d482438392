"""Chance for one run: a source per stream, so that what one stream draws does not move the others."""

from random import Random


def stream(seed: int, name: str) -> Random:
    """Return the source of the stream ``name`` (``faults``, ``topics of send``...) of a block.

    Every arm of a block gets the same draws, however many another stream of it takes.
    """
    return Random(f"{seed}/{name}")
