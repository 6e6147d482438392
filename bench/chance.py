"""Random sources of one run. Each purpose has its own source ("stream"), so streams do not interfere."""

from random import Random


def stream(seed: int, name: str) -> Random:
    """Return the random source of the stream ``name`` (``faults``, ``topics of send``...) for a seed.

    With the same seed, all designs draw the same numbers from a stream.
    """
    return Random(f"{seed}/{name}")
