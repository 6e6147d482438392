"""Random sources of one run, one for each purpose ("stream"), so that streams do not affect each other."""

from random import Random


def stream(seed: int, name: str) -> Random:
    """Return the random source of the stream ``name`` (``faults``, ``topics of send``...) for a seed.

    All designs that use the same seed draw the same numbers, no matter how many numbers other streams draw.
    """
    return Random(f"{seed}/{name}")
