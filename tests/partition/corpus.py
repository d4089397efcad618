"""The corpus of the sharding stage as programs to be partitioned and run.

Every program is run in f64, where a wrong result cannot pass for a rounding, or as it is.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

import numpy as np

from tests.partition.inputs import drawn
from tests.partition.program import Program
from tests.shard.corpus import LONG, PROGRAMS, annotated, cases, lowered
from weft.ir.module import Module
from weft.ir.types import Array, TensorType

LENGTHS = {"f64": 1 << 24, "f32": 1 << 16}
_HEX = re.compile(r"dense<0x([0-9A-F]{8})> : tensor<((?:\d+x)*)f32>")


def corpus_programs(
    meshes: tuple[str, ...] = ("2x4", "2x2x2"), dtype: str = "f64"
) -> Iterator[tuple[str, Program]]:
    """Every program on these meshes with every annotation, by name."""
    for name, mesh, annotation in cases(PROGRAMS):
        if mesh in meshes:
            yield f"{name} {mesh} {annotation}", corpus_program(name, mesh, annotation, dtype)


def corpus_program(name: str, mesh: str, annotation: str, dtype: str = "f64") -> Program:
    """A program of the corpus, with arguments for it."""
    module = annotated(name, mesh, annotation)
    text = module.text(locations=True)
    if dtype == "f64":
        text = widened(text)
    return Program(text, arrays=arguments(name, mesh, module, dtype), length=LENGTHS[dtype])


def arguments(name: str, mesh: str, module: Module, dtype: str) -> tuple[Array, ...]:
    """What the program is run on: small numbers, and what must be positive is."""
    program = PROGRAMS.get(name) or LONG[name]
    _, names = lowered(name, mesh if program.on_mesh else "8")
    rng = np.random.default_rng(0)
    found = []
    for argument, type in zip(names, module.function("main").arg_types, strict=True):
        assert isinstance(type, TensorType)
        array = drawn(type, rng)
        if array.dtype == np.float32:
            array = abs(array) + 0.1 if argument.startswith("second") else array * 0.5
            array = array.astype(np.float64 if dtype == "f64" else np.float32)
        found.append(array)
    return tuple(found)


def widened(text: str) -> str:
    """The program in f64, its constants included."""

    def wide(match: re.Match[str]) -> str:
        (value,) = struct.unpack(">f", bytes.fromhex(match[1]))
        return f"dense<0x{struct.pack('>d', value).hex().upper()}> : tensor<{match[2]}f64>"

    text = _HEX.sub(wide, text)
    return re.sub(r"(?<=[x<])f32(?=>)", "f64", text)
