"""Random sources of one run: one for each stream, so that a draw of one stream does not change the others."""

from random import Random


def stream(seed: int, name: str) -> Random:
    """Return the random source of the stream ``name`` (``faults``, ``topics of send``...) of a block.

    Every arm of a block gets the same draws, however many draws other streams make.
    """
    return Random(f"{seed}/{name}")
