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
from weft.executable.items import Launch
from weft.kernels.group import AnyKernel
from weft.machine import HOST, machine
from weft.pipeline import compile_module
from weft.run.bind import loaded_kernels


def kernels(text: str) -> list[AnyKernel]:
    """The kernels of a program."""
    local = compile_module(parse(text), target="llvm", tune="off").local
    assert local.calls is not None
    return [launch.kernel for launch, _ in loaded_kernels(local.calls)]


def test_units_by_kind() -> None:
    (product,) = kernels(product_program(2, 8, 16, 32))
    sizes = {"output": 2 * 8 * 32, "packed": 2 * (8 * 16 + 16 * 32)}
    assert kernel_terms(product) == sizes | {"padding": 0.0}
    (narrow,) = kernels(product_program(1, 8, 16, 12))
    assert kernel_terms(narrow)["padding"] == pytest.approx(2 * 8 * 16 * 4), "12 of 16 lanes"
    (rows,) = kernels(rows_program(8, 20))
    found = kernel_terms(rows)
    assert found["across"] == 8, "one reduction of lanes for each row"
    assert found["division"] == 8 * 2, "20 elements are two registers"
    (attention,) = kernels(attention_program(4, 8, 16))
    flops = 4 * 2 * 8 * 8 * (16 + 16)
    found = kernel_terms(attention)
    assert found == {"head": 4, "attention": 4 * flops, "few": 4 * 8}, "8 of 16 lanes, twice"
    (shallow,) = kernels(attention_program(4, 16, 8))
    flops = 4 * 2 * 16 * 16 * (8 + 8)
    assert kernel_terms(shallow) == {"head": 4, "attention": 2 * flops}, "8 of 16 deep"


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


# Microseconds beyond a launch, measured on an H200 (benchmarks/gpu_predict.py).
ON_H200 = {
    "add 4096": 0.41, "add 262144": 1.31, "add 4194304": 7.5, "add 67108864": 94.7,
    "rms 1x4096": 1.46, "rms 1x16384": 3.23, "rms 132x4096": 2.27, "rms 8192x4096": 33.9,
    "gemm 64x4096x4096": 13.1, "gemm 128x4096x14336": 38.0, "gemm 256x4096x4096": 19.2,
    "gemm 1024x4096x4096": 50.9, "gemm 8192x4096x4096": 337.6,
}  # fmt: skip


@pytest.mark.parametrize("name", ON_H200)
def test_a_gpu_that_is_not_here(name: str) -> None:
    """Launches of the triton target are predicted within 15%; nothing of it is installed."""
    kind, _, sizes = name.partition(" ")
    on, program = machine("h200"), GPU_PROGRAMS[kind](*map(int, sizes.split("x")))
    made = compile_module(parse(program), target="triton", to="tiled", tune="off").executable
    assert made is not None
    seconds = [
        kernel_seconds(item.kernel, on)
        for item in made.tiled.block.items
        if isinstance(item, Launch)
    ]
    assert sum(seconds) == pytest.approx(on.launch + 1e-6 * ON_H200[name], rel=0.15)


def bf16_add(count: int) -> str:
    type = f"tensor<{count}xbf16>"
    return f"""
func.func @main(%a: {type}, %b: {type}) -> {type} {{
  %0 = stablehlo.add %a, %b : {type}
  return %0 : {type}
}}"""


def bf16_rms_norm(rows: int, columns: int) -> str:
    whole, side = f"tensor<{rows}x{columns}xbf16>", f"tensor<{rows}xf32>"
    wide = whole.replace("bf16", "f32")
    return f"""
func.func @main(%a: {whole}, %w: tensor<{columns}xbf16>) -> {whole} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.convert %a : ({whole}) -> {wide}
  %1 = stablehlo.multiply %0, %0 : {wide}
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [1]
    : ({wide}, tensor<f32>) -> {side}
  %3 = stablehlo.rsqrt %2 : {side}
  %4 = stablehlo.broadcast_in_dim %3, dims = [0] : ({side}) -> {wide}
  %5 = stablehlo.multiply %0, %4 : {wide}
  %6 = stablehlo.convert %5 : ({wide}) -> {whole}
  %7 = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<{columns}xbf16>) -> {whole}
  %8 = stablehlo.multiply %6, %7 : {whole}
  return %8 : {whole}
}}"""


def bf16_product(rows: int, depth: int, columns: int) -> str:
    a, b, c = (
        f"tensor<{m}x{n}xbf16>" for m, n in ((rows, depth), (depth, columns), (rows, columns))
    )
    return f"""
func.func @main(%a: {a}, %b: {b}) -> {c} {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({a}, {b}) -> {c}
  return %0 : {c}
}}"""


GPU_PROGRAMS = {"add": bf16_add, "rms": bf16_rms_norm, "gemm": bf16_product}


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
