"""Compiling: what JAX hands over becomes a program through the same pipeline as everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.capture.jax import read_bytecode
from weft.capture.tokens import tokens_as_values
from weft.ir.module import Module
from weft.ir.types import TensorType
from weft.jax.client import KINDS
from weft.jax.handles import UNIMPLEMENTED, Refused
from weft.jax.protos import device_numbers
from weft.pipeline import Program, compile_module
from weft.run import LocalProgram


@dataclass(frozen=True, slots=True)
class Asked:
    """What JAX asks for, besides the program."""

    replicas: int
    partitions: int
    devices: tuple[int, ...]  # by partition; empty if any will do


@dataclass(frozen=True, slots=True)
class Executable:
    """A compiled program, and all that JAX may ask about it."""

    code: bytes  # as JAX gave it
    options: bytes
    asked: Asked
    program: Program

    @property
    def local(self) -> LocalProgram:
        """What runs."""
        return self.program.local

    @property
    def module(self) -> Module:
        """The program of one device."""
        return self.program.module

    @property
    def name(self) -> str:
        """What JAX calls it."""
        return self.program.module.name or "main"

    @property
    def memory_kinds(self) -> list[str]:
        """The kind of memory that each result is put into."""
        return [KINDS[0]] * len(self.local.result_types)

    @property
    def results(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """The shape and type of each device's piece of every result."""
        types = self.local.result_types
        assert all(isinstance(type, TensorType) for type in types), "JAX keeps tokens to itself"
        return [(t.sizes, t.dtype.numpy) for t in types if isinstance(t, TensorType)]


def compiled(code: bytes, format: str, options: bytes) -> Executable:
    """Compile a program that JAX hands over."""
    if format != "mlir":
        raise Refused(UNIMPLEMENTED, f"programs in the format {format!r}; StableHLO is read")
    module = tokens_as_values(read_bytecode(code))
    return Executable(code, options, asked_in(options), compile_module(module))


def asked_in(options: bytes) -> Asked:
    """What the options of a compilation say."""
    from jaxlib import _jax

    built = _jax.CompileOptions.ParseFromString(options).executable_build_options
    assigned = built.device_assignment
    devices = () if assigned is None else device_numbers(assigned.serialize())
    return Asked(built.num_replicas, built.num_partitions, devices)
