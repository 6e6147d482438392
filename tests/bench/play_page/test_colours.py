"""The drawings' colours have enough contrast on light and on dark pages, and no two states look alike."""

import re
from importlib import resources
from itertools import combinations

import pytest

TEXT_MIN = 4.5
"""Least contrast ratio that WCAG 2.1 level AA requires for text of ordinary size."""
STATES = ("right", "stale", "wrong", "refused", "none")
SERVERS = ("up", "leader", "follower", "leaderless", "silent", "starting", "paused", "down")


def drawings(name: str) -> str:
    return resources.files("routekeeper.nameserver.http").joinpath("web", "drawings", name).read_text()


def colours(*, dark: bool) -> dict[str, str]:
    """Return the values of all CSS colour variables in the light or the dark scheme, by name."""
    light, _, rest = drawings("drawings.css").partition("@media (prefers-color-scheme: dark)")
    block = rest.partition("}\n}")[0] if dark else light
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block))


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dim, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", [*STATES, *SERVERS, "ink", "ink-soft", "accent"])
def test_a_colour_is_legible_on_each_ground(name: str, dark: bool) -> None:
    found = colours(dark=dark)
    for ground in ("surface", "raised", "ground"):
        assert contrast(found[name], found[ground]) >= TEXT_MIN, (name, ground)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_two_states_share_a_colour(dark: bool) -> None:
    found = colours(dark=dark)
    for one, other in combinations((*STATES, *SERVERS), 2):
        assert found[one] != found[other], (one, other)


def test_each_state_has_a_mark_and_a_band_of_its_own() -> None:
    text = drawings("states.js")
    for family in ("ANSWERS", "SERVERS"):
        block = text.partition(f"export const {family} = {{")[2].partition("\n};")[0]
        shapes = re.findall(r'shape: "([^"]+)"', block)
        bands = re.findall(r'band: "([^"]+)"', block)
        assert len(shapes) == len(set(shapes)) >= 6, family
        assert len(bands) == len(set(bands)) == len(shapes), family
