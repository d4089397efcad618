"""Progress of tuning: a record of each measured class of kernels, for a listener."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class TriedClass:
    """The measurement of one class: seconds by candidate, reasons of failures, and the choice."""

    kernel: str
    shape_class: str
    took: float  # seconds of measuring; 0 if it was cached
    seconds: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    best: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """Callbacks: before a class is measured, and after it."""

    begin: Callable[[str, int], None]  # the kernel's name, and its number of candidates
    end: Callable[[TriedClass], None]


_LISTENER: ContextVar[TuneProgress | None] = ContextVar("_LISTENER", default=None)


@contextmanager
def listening(progress: TuneProgress) -> Iterator[None]:
    """Report measurements of this context."""
    token = _LISTENER.set(progress)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def report_begin(kernel: str, candidates: int) -> None:
    """Report that a class is about to be measured."""
    if (listener := _LISTENER.get()) is not None:
        listener.begin(kernel, candidates)


def report_end(tried: TriedClass) -> None:
    """Report a measured class."""
    if (listener := _LISTENER.get()) is not None:
        listener.end(tried)
