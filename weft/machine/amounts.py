"""Amounts with units, as text: bytes, bytes a second, flops a second, seconds."""

from __future__ import annotations

import math
import re

from weft.errors import WeftError

_NUMBER = r"(\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
_SIZE = re.compile(_NUMBER + r"\s*([KMGTP]?)(i?)B?", re.I)
_RATE = re.compile(_NUMBER + r"\s*([KMGTP]?)(i?)(B/s|bit/s|b/s|)", re.I)
_TIME = re.compile(_NUMBER + r"\s*(ns|us|ms|s)")
_PREFIXES = ("", "K", "M", "G", "T", "P")
_IN_A_SECOND = {"s": 1e0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def bytes_of(text: str) -> int:
    """`80GiB`, `512MB` or `1024` as a number of bytes."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise WeftError(
            f"cannot parse {text!r} as a memory size", help="write 80GiB, 512MB or 4096"
        )
    number, prefix, binary = match.groups()
    return round(float(number) * _scale(prefix, binary))


def bytes_text(count: float) -> str:
    """`79.6 GiB`: a number of bytes in three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            exact = unit == "B" or abs(count) >= 1000  # `.3g` would switch to 1.01e+03
            return f"{count:,.0f} {unit}" if exact else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} TiB" if count < 1000 else f"{count:,.0f} TiB"


def rate_of(text: str) -> float:
    """`3.35TB/s` as bytes, `750T` as flops, `400Gbit/s` as the bytes a second of a link."""
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise WeftError(
            f"cannot parse {text!r} as a rate", help="write 3.35TB/s, 400Gbit/s or 750T"
        )
    number, prefix, binary, unit = match.groups()
    bits = 8 if unit.lower() == "bit/s" or unit == "b/s" else 1
    return float(number) * _scale(prefix, binary) / bits


def link_rate_of(text: str) -> float:
    """`400G`, as network cards are named by their bits a second, or `50GB/s`, in bytes a second."""
    is_whole = re.search(r"b(it)?/s$", text.strip(), re.I)
    try:
        rate = rate_of(text if is_whole else f"{text.strip()}bit/s")
    except WeftError:
        rate = 0.0
    if not rate:
        raise WeftError(
            f"{text!r} is no rate of a network card", help="write 400G, in bits a second, or 50GB/s"
        )
    return rate


def seconds_of(text: str) -> float:
    """`1.5us` as seconds."""
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise WeftError(f"cannot parse {text!r} as a time", help="write 1.5us, 3ms or 250ns")
    return float(match[1]) / _IN_A_SECOND[match[2]]


def rate_text(rate: float, unit: str = "") -> str:
    """`750 T`, `3 TB/s`: a rate in three digits."""
    for prefix in ("", "K", "M", "G", "T"):
        if abs(rate) < 1000:
            return f"{rate:.3g} {prefix}{unit}".rstrip()
        rate /= 1000
    return f"{rate:.3g} P{unit}"


def seconds_text(seconds: float) -> str:
    """`31.1 us`: a time in three digits."""
    for unit in ("s", "ms", "us"):
        shown = seconds * _IN_A_SECOND[unit]
        if shown >= 1:
            return f"{shown:,.0f} {unit}" if shown >= 100 else f"{shown:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns" if seconds else "0 s"


def _scale(prefix: str, binary: str) -> float:
    return math.pow(1024.0 if binary else 1000.0, _PREFIXES.index(prefix.upper()))
