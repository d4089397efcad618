"""Seconds of kernels beside their roofline: overheads by kind, threads, flows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.capture import parse
from weft.cli.kernel_calibration import (
    attention_program,
    fitted,
    positive_least_squares,
    product_program,
    rows_program,
)
from weft.cost.kernel_terms import kernel_terms
from weft.cost.kernels import kernel_seconds
from weft.kernels.group import Launch
from weft.machine import HOST
from weft.pipeline import compile_module
from weft.run.bind import loaded_kernels


def kernels(text: str) -> list[Launch]:
    """The kernels of a program."""
    local = compile_module(parse(text), target="llvm", tune="off").local
    assert local.calls is not None
    return [launch.kernel for launch, _ in loaded_kernels(local.calls)]


def test_units_by_kind() -> None:
    (product,) = kernels(product_program(2, 8, 16, 32))
    assert kernel_terms(product) == {"output": 2 * 8 * 32, "packed": 2 * (8 * 16 + 16 * 32)}
    (rows,) = kernels(rows_program(8, 20))
    found = kernel_terms(rows)
    assert found["across"] == 8, "one reduction of lanes for each row"
    assert found["division"] == 8 * 2, "20 elements are two registers"
    (attention,) = kernels(attention_program(4, 8, 16))
    flops = 4 * 2 * 8 * 8 * (16 + 16)
    assert kernel_terms(attention) == {"head": 4, "attention": 4 * flops}, "8 of 16 lanes, twice"


def test_overheads_and_threads() -> None:
    (product,) = kernels(product_program(1, 64, 64, 64))
    base = replace(HOST, overheads=(("output", 1e-6),))
    serial = kernel_seconds(product, base)
    assert serial > 64 * 64 * 1e-6
    shared = replace(base, threads=4, overheads=(*base.overheads, ("wake", 1e-4)))
    assert kernel_seconds(product, shared) < serial / 2, "a large one runs on all threads"
    tiny = replace(shared, overheads=(("output", 1e-12), ("wake", 1e-3)))
    assert kernel_seconds(product, tiny) < 1e-3, "a small one on one"


def test_what_was_fitted() -> None:
    shapes = ((1, 8, 16, 32), (4, 32, 8, 8))
    listed = [kernel for sizes in shapes for kernel in kernels(product_program(*sizes))]
    wanted = replace(HOST, overheads=(("output", 3e-9), ("packed", 2e-9)))
    found = fitted([(kernel, kernel_seconds(kernel, wanted)) for kernel in listed], HOST)
    assert found == pytest.approx({"output": 3e-9, "packed": 2e-9}, rel=1e-6)


def test_no_negative_seconds() -> None:
    matrix = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    found = positive_least_squares(matrix, np.array([2.0, -1.0, 1.0]))
    assert found == pytest.approx([1.5, 0.0])


def test_a_flow_counts_its_rounds() -> None:
    loop = """
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %out:2 = "stablehlo.while"(%zero, %x) ({
  ^bb0(%i: tensor<i32>, %y: tensor<8x8xf32>):
    %n = stablehlo.constant dense<ROUNDS> : tensor<i32>
    %more = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  }, {
  ^bb0(%i: tensor<i32>, %y: tensor<8x8xf32>):
    %next = stablehlo.add %i, %one : tensor<i32>
    %z = stablehlo.dot_general %y, %y, contracting_dims = [1] x [0]
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    stablehlo.return %next, %z : tensor<i32>, tensor<8x8xf32>
  }) : (tensor<i32>, tensor<8x8xf32>) -> (tensor<i32>, tensor<8x8xf32>)
  return %out#1 : tensor<8x8xf32>
}"""
    ten, twenty = (
        max(kernel_seconds(kernel, HOST) - HOST.launch for kernel in kernels(text))
        for text in (loop.replace("ROUNDS", n) for n in ("10", "20"))
    )
    assert 0 < 1.5 * ten < twenty
