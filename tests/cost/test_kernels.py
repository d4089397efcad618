"""Seconds of kernels beside their roofline: overheads by kind, threads, flows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from weft.capture import parse
from weft.cli.calibration_products import (
    attention_program,
    convolution_program,
    gradient_program,
    product_program,
)
from weft.cli.calibration_programs import layouts_program, padded_program, rows_program
from weft.cli.calibration_single import pool_program, running_program
from weft.cli.kernel_calibration import fitted, positive_least_squares
from weft.cost.kernels import kernel_seconds
from weft.emit.llvm.units import WIDE, kernel_units
from weft.executable.items import Launch
from weft.kernels.group import AnyKernel
from weft.machine import HOST, machine
from weft.pipeline import compile_module
from weft.run.bind import loaded_kernels


def units(kernel: AnyKernel) -> Mapping[str, float]:
    """What is counted for a processor that need not be this one."""
    return kernel_units(kernel, WIDE)


def kernels(text: str) -> list[AnyKernel]:
    """The kernels of a program."""
    local = compile_module(parse(text), target="llvm", tune="off").local
    assert local.calls is not None
    return [launch.kernel for launch, _ in loaded_kernels(local.calls)]


def test_units_by_kind() -> None:
    (product,) = kernels(product_program(2, 8, 16, 32))
    # Eight rows and two registers of columns: eight cycles for each step of 16, 64 flops in each.
    assert units(product)["multiplied"] == 2 * 8 * 16 * 64
    assert units(product)["block"] == 2
    (narrow,) = kernels(product_program(1, 8, 16, 12))
    assert units(narrow)["multiplied"] == 16 * 4.5 * 64, "nine loads, two in a cycle"
    (rows,) = kernels(rows_program(8, 20))
    found = units(rows)
    assert found["across"] == found["line"] == 8, "one reduction of lanes for each row"
    assert found["division"] == 8 * 2, "20 elements are two registers"
    (attention,) = kernels(attention_program(4, 8, 8, 16))
    assert units(attention)["few"] == 4 * 8, "8 of 16 lanes"
    (shallow,) = kernels(attention_program(4, 16, 16, 8))
    flops = 4 * 2 * 16 * 16 * (16 + 16)
    found = units(shallow)
    assert found == {"head": 4, "scores": 4 * 16 * 16, "attention": flops}, "8 of 16 deep"


def test_units_of_memory_order() -> None:
    """Elements that lie apart, in turned tiles, at indices, in windows, in panels."""
    (turned,) = [k for k in kernels(layouts_program(64, 2, 4)) if units(k).get("turned")]
    assert units(turned)["turned"] == 3 * 64 * 2 * 4, "two operands, and the result"
    (padded,) = kernels(padded_program(64, 32))
    assert units(padded)["strided"] == 66 * 32
    (pool,) = [k for k in kernels(pool_program(4, 16, 16)) if units(k).get("window")]
    assert units(pool)["window"] == 4 * 8 * 8 * 4
    (running,) = [k for k in kernels(running_program(32, 16)) if units(k).get("element")]
    assert units(running)["element"] == 32 * 16, "not once for each window"
    (image,) = kernels(convolution_program(2, 16, 4, 16))
    assert units(image)["packed"] == 2 * 16 * 16 * 9, "registers hold four channels"
    (thin,) = kernels(convolution_program(8, 8, 3, 16))
    assert units(thin)["gathered"] == 8 * 8 * 8 * 27, "three are gathered"


def test_overheads_and_threads() -> None:
    (small,) = kernels(product_program(1, 64, 64, 64))
    (product,) = kernels(product_program(1, 256, 64, 256))
    base = replace(HOST, overheads=(("block", 1e-3),))
    blocks = units(product)["block"]
    serial = kernel_seconds(product, base, units)
    assert serial > blocks * 1e-3
    shared = replace(base, threads=4, overheads=(*base.overheads, ("wake", 1e-4)))
    seconds = kernel_seconds(product, shared, units)
    assert seconds < serial / 2, "a large one runs on all threads"
    alone = kernel_seconds(small, base, units)
    assert kernel_seconds(small, shared, units) >= alone, "one task, which threads do not share"
    tiny = replace(shared, overheads=(("block", 1e-12), ("wake", 1e-3)))
    assert kernel_seconds(product, tiny, units) < 1e-3, "a small one on one"
    assert kernel_seconds(product, base) < 1e-3, "nobody counted its blocks"


def test_operands_of_a_large_program_come_from_farther() -> None:
    (rows,) = kernels(rows_program(64, 32))
    on = replace(
        HOST, overheads=(("line", 1e-9),), memory_curve=((1e4, 10.0), (1e6, 2.0), (1e8, 1.0))
    )
    near, far = (kernel_seconds(rows, on, units, size) for size in (0.0, 1e8))
    size = 3 * 64 * 32 * 4
    assert far - near == pytest.approx(size / on.bandwidth - size / on.bandwidth_at(size))


def test_what_was_fitted() -> None:
    shapes = ((1, 8, 16, 32), (4, 32, 8, 8), (2, 64, 32, 16))
    listed = [kernel for sizes in shapes for kernel in kernels(gradient_program(*sizes[1:]))]
    wanted = replace(HOST, overheads=(("block", 3e-7), ("register", 2e-9)))
    timed = [(kernel, kernel_seconds(kernel, wanted, kernel_units)) for kernel in listed]
    found = fitted(timed, HOST)
    assert found["block"] == pytest.approx(3e-7, rel=1e-3)
    assert found["register"] == pytest.approx(2e-9, rel=1e-3)


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
