"""The names of tuning candidates: their options as text, and their shape classes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from weft.kernels.kernel import OptionRanges, refuses_options

_PAIR = re.compile(r"(\w+)=(\d+)")


def name_of(options: Mapping[str, int]) -> str:
    """The name of options: `depth=512, parts=4`."""
    return ", ".join(f"{name}={value}" for name, value in sorted(options.items()))


def options_named(name: str, known: OptionRanges) -> dict[str, int] | None:
    """The options of a name; None if it is malformed, or has options that are not known."""
    pairs = [_PAIR.fullmatch(pair) for pair in name.split(", ")]
    options = {pair[1]: int(pair[2]) for pair in pairs if pair is not None}
    if len(options) < len(pairs) or refuses_options(options.items(), known) is not None:
        return None
    return options


def round_up(number: int) -> int:
    """The least of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is not below a number."""
    # Two classes an octave: sizes of one class differ by less than half, so that a measured choice
    # for one of them is a good one for all.
    if number <= 4:
        return number
    power = 1 << (number - 1).bit_length()
    return power * 3 // 4 if number <= power * 3 // 4 else power
