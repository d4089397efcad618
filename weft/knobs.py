"""The environment variables that Weft reads, typed; at most eight."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Literal, TypeVar, get_args

from weft.errors import WeftError
from weft.records import dataclass

T = TypeVar("T")
Tune = Literal["off", "remembered", "measure"]
TUNES: tuple[Tune, ...] = get_args(Tune)


@dataclass(frozen=True, slots=True)
class Knob(Generic[T]):
    """One environment variable: its name, description and parser."""

    name: str
    about: str
    read: Callable[[str], T]
    default: T

    def value(self) -> T:
        """Its value; the default if it is unset or empty."""
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.read(text)
        except ValueError:
            raise WeftError(f"{self.name}={text!r} is invalid", help=self.about) from None


def _folder(text: str) -> Path | None:
    return Path(text)


def _name(text: str) -> str | None:
    return text


def _count(text: str) -> int | None:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _devices(text: str) -> int:
    return _count(text) or 0


def _seconds(text: str) -> float:
    if not 0 < float(text) < 1e9:
        raise ValueError
    return float(text)


def _truth(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError
    return text == "1"


def _tune(text: str) -> Tune:
    return TUNES[TUNES.index(text)]  # ValueError for unknown modes


TRACE = Knob("WEFT_TRACE", "a folder to write every stage of every program to", _folder, None)

CACHE = Knob("WEFT_CACHE", "the folder of the cache on disk", _folder, None)

THREADS = Knob(
    "WEFT_THREADS",
    "threads that run kernels: 1 or more; by default all cores of this process",
    _count,
    None,
)

DEVICES = Knob(
    "WEFT_DEVICES",
    "virtual devices of JAX with JAX_PLATFORMS=weft: 1 or more; 8 by default",
    _devices,
    8,
)

EXPLAIN = Knob(
    "WEFT_EXPLAIN",
    "1 to print the collectives of each JAX program, with reasons and advice",
    _truth,
    False,
)

TUNE: Knob[Tune] = Knob(
    "WEFT_TUNE",
    "tuning of matrix products: off, remembered (measured before), or measure (new ones, too)",
    _tune,
    "remembered",
)

TIMEOUT = Knob(
    "WEFT_TIMEOUT",
    "seconds that a worker waits for others before it fails: more than 0; 300 by default",
    _seconds,
    300.0,
)

TARGET = Knob(
    "WEFT_TARGET",
    "the target of programs that name none: llvm, triton, numpy, or one of an installed package",
    _name,
    None,
)

KNOBS = (TRACE, CACHE, THREADS, DEVICES, EXPLAIN, TUNE, TIMEOUT, TARGET)


def cache_folder() -> Path | None:
    """The folder that WEFT_CACHE names, else one in the user's home; None without a home."""
    named = CACHE.value()
    if named is not None:
        return named
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "weft"
    try:
        return Path.home() / ".cache" / "weft"
    except RuntimeError:  # a container's user id may have no passwd entry
        return None
