"""Trusted bytecode, written by a framework in this process: parsed without a subprocess."""

from __future__ import annotations

from weft.capture.stablehlo.call_lines import give_lines_of_calls
from weft.capture.stablehlo.mlir_parser import read_in_process
from weft.ir.dense import add_resource, drop_resources
from weft.ir.module import Module
from weft.ir.read import read_module
from weft.ir.types import Array
from weft.ops import BY_NAME


def read_bytecode(program: bytes) -> Module:
    """The module with its source locations."""
    lent: list[str] = []

    def lend(array: Array) -> str:
        lent.append(add_resource(array))
        return lent[-1]

    try:
        text = read_in_process(program, lend)
        return give_lines_of_calls(read_module(text, BY_NAME))
    finally:
        drop_resources(lent)
