"""Small programs of products, convolutions and attention."""

from __future__ import annotations

from itertools import pairwise


def product_program(batch: int, rows: int, depth: int, columns: int) -> str:
    """One batched product."""
    left, right = (f"tensor<{batch}x{a}x{b}xf32>" for a, b in pairwise((rows, depth, columns)))
    out = f"tensor<{batch}x{rows}x{columns}xf32>"
    return f"""
func.func @main(%a: {left}, %b: {right}) -> {out} {{
  %0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [2] x [1]
    : ({left}, {right}) -> {out}
  return %0 : {out}
}}"""


def against_program(rows: int, depth: int, columns: int) -> str:
    """A product with a transposed right side, as of an input's gradient."""
    left, right, out = (
        f"tensor<{a}x{b}xf32>" for a, b in ((rows, depth), (columns, depth), (rows, columns))
    )
    return f"""
func.func @main(%a: {left}, %b: {right}) -> {out} {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [1] : ({left}, {right}) -> {out}
  return %0 : {out}
}}"""


def layer_program(rows: int, depth: int, columns: int, op: str) -> str:
    """A product, its bias, a function of the sum, and what was there before."""
    left, right, out = (
        f"tensor<{a}x{b}xf32>" for a, b in ((rows, depth), (depth, columns), (rows, columns))
    )
    return f"""
func.func @main(%a: {left}, %b: {right}, %c: tensor<{columns}xf32>, %d: {out}) -> {out} {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0] : ({left}, {right}) -> {out}
  %1 = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<{columns}xf32>) -> {out}
  %2 = stablehlo.add %0, %1 : {out}
  %3 = stablehlo.{op} %2 : {out}
  %4 = stablehlo.multiply %3, %2 : {out}
  %5 = stablehlo.add %4, %d : {out}
  return %5 : {out}
}}"""


def gradient_program(depth: int, rows: int, columns: int) -> str:
    """One product whose operands are both transposed, like a weight's gradient."""
    left, right, out = (
        f"tensor<{a}x{b}xf32>" for a, b in ((depth, rows), (depth, columns), (rows, columns))
    )
    return f"""
func.func @main(%a: {left}, %b: {right}, %c: {out}) -> {out} {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [0] x [0] : ({left}, {right}) -> {out}
  %1 = stablehlo.subtract %c, %0 : {out}
  return %1 : {out}
}}"""


def convolution_program(batch: int, side: int, channels: int, features: int) -> str:
    """A convolution of windows of three by three, which keeps its sides."""
    image, filters, out = (
        f"tensor<{batch}x{side}x{side}x{channels}xf32>", f"tensor<3x3x{channels}x{features}xf32>",
        f"tensor<{batch}x{side}x{side}x{features}xf32>",
    )  # fmt: skip
    return f"""
func.func @main(%a: {image}, %b: {filters}) -> {out} {{
  %0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{pad = [[1, 1], [1, 1]]}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : ({image}, {filters}) -> {out}
  return %0 : {out}
}}"""


def filters_program(batch: int, side: int, channels: int, features: int) -> str:
    """The gradient of the filters of such a convolution."""
    image, out, filters = (
        f"tensor<{batch}x{side}x{side}x{channels}xf32>",
        f"tensor<{batch}x{side}x{side}x{features}xf32>", f"tensor<3x3x{channels}x{features}xf32>",
    )  # fmt: skip
    return f"""
func.func @main(%a: {image}, %b: {out}) -> {filters} {{
  %0 = stablehlo.convolution(%a, %b) dim_numbers = [f, 0, 1, b]x[i, 0, 1, o]->[0, 1, b, f],
    window = {{pad = [[1, 1], [1, 1]]}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : ({image}, {out}) -> {filters}
  return %0 : {filters}
}}"""


def attention_program(heads: int, queries: int, keys: int, depth: int) -> str:
    """Softmax attention."""
    tensor, keyed = (f"tensor<{heads}x{length}x{depth}xf32>" for length in (queries, keys))
    scores, side = f"tensor<{heads}x{queries}x{keys}xf32>", f"tensor<{heads}x{queries}xf32>"
    return f"""
func.func @main(%q: {tensor}, %k: {keyed}, %v: {keyed}) -> {tensor} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2]
    : ({tensor}, {keyed}) -> {scores}
  %1 = stablehlo.reduce(%0 init: %least) applies stablehlo.maximum across dimensions = [2]
    : ({scores}, tensor<f32>) -> {side}
  %2 = stablehlo.broadcast_in_dim %1, dims = [0, 1] : ({side}) -> {scores}
  %3 = stablehlo.subtract %0, %2 : {scores}
  %4 = stablehlo.exponential %3 : {scores}
  %5 = stablehlo.reduce(%4 init: %z) applies stablehlo.add across dimensions = [2]
    : ({scores}, tensor<f32>) -> {side}
  %6 = stablehlo.broadcast_in_dim %5, dims = [0, 1] : ({side}) -> {scores}
  %7 = stablehlo.divide %4, %6 : {scores}
  %8 = stablehlo.dot_general %7, %v, batching_dims = [0] x [0], contracting_dims = [2] x [1]
    : ({scores}, {keyed}) -> {tensor}
  return %8 : {tensor}
}}"""
