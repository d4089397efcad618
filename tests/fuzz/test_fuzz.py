"""Damaged programs are refused with a message and a place; nothing else may happen.

`weft.parse` gives a module or raises WeftError, and so does `evaluate` of what it gave: no other
exception, no crash, no hang.
"""

from __future__ import annotations

import math
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz.corpus import binaries, texts
from tests.fuzz.mutate import mutated
from weft.capture import parse
from weft.cli import main
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Module
from weft.ir.types import TensorType, Type
from weft.ir.verify import verify

SHORT, LONG = 300, 10_000
SECONDS = 90  # after which a program counts as hanging; the parser itself gives up before
ELEMENTS = 1 << 14  # of the largest value that is evaluated


class Hangs(Exception):
    """A program that takes too long."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise if the body takes longer."""

    def give_up(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def broken_promise(program: str | bytes) -> str | None:
    """What went wrong beyond a refusal, if anything."""
    try:
        with limited(SECONDS):
            module = parse(program)
            again = parse(verify(module).text())
    except WeftError as error:
        return _poor(error, program)
    except Hangs:
        return "hangs"
    except BaseException:  # noqa: BLE001  # every other exception is what is looked for
        return traceback.format_exc(limit=-4)
    if again.text() != module.text():
        return "its text reads differently"
    return _evaluated(module)


def _poor(error: WeftError, program: str | bytes) -> str | None:
    """Whether an error lacks what every error has."""
    if not error.message or not error.help:
        return f"no message or no help: {error}"
    if isinstance(program, str) and (error.loc is None or not error.loc.known):
        return f"no place: {error}"
    return None


def _evaluated(module: Module) -> str | None:
    """What goes wrong when a module is evaluated, if it is small."""
    values = [v.type for n in module.nodes() for v in (*n.operands, *n.results)]
    values += [type for f in module.functions.values() for type in f.arg_types]
    if "main" not in module.functions or any(map(_large, values)):
        return None
    try:
        arrays = [_zeros(type) for type in module.function("main").arg_types]
        with limited(5):
            evaluate(module, *arrays)
    except (WeftError, Hangs):  # a loop may run for ever
        return None
    except BaseException:  # noqa: BLE001  # every other exception is what is looked for
        return traceback.format_exc(limit=-4)
    return None


def _large(type: Type) -> bool:
    if not isinstance(type, TensorType):
        return False
    return math.prod(max(1, size) for size in type.bounds) > ELEMENTS


def _zeros(type: Type) -> object:
    if not isinstance(type, TensorType):
        return None
    return np.zeros(type.sizes, type.dtype.numpy)


def survey(programs: tuple[str, ...] | tuple[bytes, ...], seeds: range) -> list[str]:
    """The broken promises among damaged programs, each with the seed that reproduces it."""
    found = []
    for seed in seeds:
        damaged, how = mutated(programs[seed % len(programs)], seed)
        if isinstance(damaged, str):
            damaged += "\n"  # a text without a line end may be a path
        if problem := broken_promise(damaged):
            found.append(f"seed {seed} ({how}): {problem}")
    return found


def test_the_programs_themselves_are_good():
    assert [p for text in texts() if (p := broken_promise(text))] == []


def test_damaged_text_is_refused():
    found = survey(texts(), range(SHORT // 2))
    assert not found, "\n".join(found)


def test_damaged_bytes_are_refused():
    found = survey(binaries(), range(SHORT // 2))
    assert not found, "\n".join(found)


def test_the_command_refuses_damaged_files(tmp_path: Path):
    programs = texts()
    for seed in range(0, 400, 20):
        damaged, how = mutated(programs[seed % len(programs)], seed)
        assert isinstance(damaged, str)
        file = tmp_path / f"{seed}.mlir"
        file.write_text(damaged)
        assert main(["check", str(file)]) in (0, 1), f"seed {seed} ({how})"


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_much_damaged_text_is_refused(part: int):
    size = LONG // 10
    found = survey(texts(), range(part * size, (part + 1) * size))
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_much_damaged_bytes_are_refused(part: int):
    size = LONG // 10
    found = survey(binaries(), range(part * size, (part + 1) * size))
    assert not found, "\n".join(found)
