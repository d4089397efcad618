"""Small programs whose kernels are timed; here those of loops."""

from __future__ import annotations

from collections.abc import Iterator

from weft.cli.calibration_products import (
    against_program,
    attention_program,
    convolution_program,
    filters_program,
    gradient_program,
    layer_program,
    product_program,
)
from weft.cli.calibration_single import (
    best_program,
    folded_program,
    order_program,
    pool_program,
    running_program,
    scatter_program,
    sort_program,
    unpool_program,
)

# Rows, columns, heads and depths of tiny, narrow and square ones.
_PRODUCTS = (
    (1, 8, 16, 16), (1, 64, 32, 64), (1, 128, 32, 128), (8, 16, 32, 16), (1, 32, 256, 32),
    (4, 64, 16, 64), (1, 128, 128, 48), (1, 512, 36, 16), (8, 16, 8, 16), (1, 64, 8, 48),
    (1, 128, 8, 8), (16, 8, 16, 8), (1, 32, 64, 12),
)  # fmt: skip
_ROWS = ((64, 32), (128, 48), (16, 256), (256, 20))
_GRADIENTS = ((248, 64, 48), (64, 32, 32), (96, 48, 176))
_POOLS = ((4, 16, 16), (8, 16, 4))
_SIDES = ((8, 16, 4), (16, 8, 8), (4, 32, 16), (32, 4, 31))
_HEADS = ((16, 16, 16), (32, 16, 8), (64, 8, 16), (8, 64, 32), (32, 4, 16))
_TAILS = ((62, 31), (124, 64), (248, 8), (31, 176))
_CHANNELS = ((2048, 4), (512, 16), (256, 64), (96, 200))
_SQUARES = ((64, 32), (128, 48), (30, 31))
_LAYOUTS = ((64, 2, 4), (128, 8, 4), (31, 4, 6))
_TURNED = ((4, 31, 4, 8), (2, 64, 8, 16), (8, 16, 2, 64))
_LOOKUPS = ((64, 124, 8), (256, 64, 32), (48, 31, 64), (64, 128, 4))
_OPS = (
    "add", "maximum", "divide", "rsqrt", "exponential", "log", "tanh", "logistic", "cosine",
)  # fmt: skip
_OF_TWO = ("add", "maximum", "divide")
_CHAINS = (512, 8192)
_LAYERS = (
    (248, 64, 176, "logistic"), (64, 32, 128, "tanh"), (31, 48, 40, "exponential"),
    (128, 96, 64, "negate"),
)  # fmt: skip
_AGAINST = ((128, 48, 32), (64, 128, 64), (248, 31, 16), (12, 64, 100))
_LARGE = ((1, 248, 64, 64), (1, 96, 128, 176), (8, 31, 31, 8), (16, 31, 8, 31), (1, 8, 2048, 16))
_IMAGES = ((2, 16, 4, 16), (4, 8, 16, 8), (8, 8, 3, 16), (1, 16, 16, 32), (4, 8, 12, 16))
_SORTED = ((32, 16), (16, 64), (8, 256))
_WINDOWED = ((256, 8, 16, 16), (32, 4, 40, 32), (16, 31, 31, 8), (8, 48, 64, 16))


def kernel_programs() -> Iterator[str]:
    """Programs of products, loops, attention, sorts, windows and indices."""
    yield from (product_program(*sizes) for sizes in _PRODUCTS + _LARGE)
    yield from (against_program(*sizes) for sizes in _AGAINST)
    yield from (layer_program(*sizes) for sizes in _LAYERS)
    yield from (gradient_program(*sizes) for sizes in _GRADIENTS)
    yield from (convolution_program(*sizes) for sizes in _IMAGES)
    yield from (filters_program(*sizes) for sizes in _IMAGES)
    yield from (chain_of(op, count) for op in _OPS for count in _CHAINS)
    for sizes in _ROWS + _TAILS:
        yield from (one(*sizes) for one in (rows_program, columns_program, softmax_program))
        yield from (one(*sizes) for one in (layer_norm_program, pieces_program))
    yield from (padded_program(*sizes) for sizes in _SQUARES)
    yield from (channels_program(*sizes) for sizes in _CHANNELS)
    yield from (heads_program(*sizes) for sizes in _TURNED)
    yield from (layouts_program(*sizes) for sizes in _LAYOUTS)
    yield from (sides_program(*sizes) for sizes in _SIDES)
    yield from (lookup_program(*sizes) for sizes in _LOOKUPS)
    yield from (attention_program(heads, length, length, depth) for heads, length, depth in _HEADS)
    yield from (attention_program(*sizes) for sizes in _WINDOWED)
    yield from (sort_program(*sizes, dim) for sizes in _ROWS[:2] for dim in (0, 1))
    yield from (order_program(*sizes) for sizes in _SORTED)
    yield from (best_program(*sizes, 4) for sizes in _SORTED)
    yield from (folded_program(*sizes) for sizes in _SORTED)
    yield from (running_program(*sizes) for sizes in _SORTED)
    yield from (scatter_program(*sizes) for sizes in (*_ROWS, *_TAILS))
    yield from (pool_program(*sizes) for sizes in _POOLS)
    yield from (unpool_program(*sizes) for sizes in _POOLS)


def rows_program(rows: int, columns: int) -> str:
    """A normalization of rows: sums along them, a division, and what each element needs."""
    whole, side = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}xf32>"
    return f"""
func.func @main(%a: {whole}, %b: {whole}) -> {whole} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.multiply %a, %a : {whole}
  %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [1]
    : ({whole}, tensor<f32>) -> {side}
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : ({side}) -> {whole}
  %3 = stablehlo.subtract %a, %2 : {whole}
  %4 = stablehlo.divide %3, %b : {whole}
  %5 = stablehlo.multiply %4, %b : {whole}
  return %5 : {whole}
}}"""


def columns_program(rows: int, columns: int) -> str:
    """A sum along columns, and a transposed result."""
    whole, side, turned = (
        f"tensor<{sizes}xf32>" for sizes in (f"{rows}x{columns}", columns, f"{columns}x{rows}")
    )
    return f"""
func.func @main(%a: {whole}, %b: {turned}) -> ({side}, {turned}) {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.multiply %a, %a : {whole}
  %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0]
    : ({whole}, tensor<f32>) -> {side}
  %2 = stablehlo.transpose %a, dims = [1, 0] : ({whole}) -> {turned}
  %3 = stablehlo.add %2, %b : {turned}
  return %1, %3 : {side}, {turned}
}}"""


def sides_program(batch: int, rows: int, columns: int) -> str:
    """Short rows that are scaled by values of their own row and of their column."""
    whole, row, column = (
        f"tensor<{sizes}xf32>"
        for sizes in (f"{batch}x{rows}x{columns}", f"{batch}x{rows}", f"{batch}x{columns}")
    )
    return f"""
func.func @main(%a: {whole}, %b: {row}, %c: {column}) -> {whole} {{
  %0 = stablehlo.broadcast_in_dim %b, dims = [0, 1] : ({row}) -> {whole}
  %1 = stablehlo.broadcast_in_dim %c, dims = [0, 2] : ({column}) -> {whole}
  %2 = stablehlo.multiply %a, %0 : {whole}
  %3 = stablehlo.add %2, %1 : {whole}
  %4 = stablehlo.tanh %3 : {whole}
  return %4 : {whole}
}}"""


def softmax_program(rows: int, columns: int) -> str:
    """Softmax of rows, of which a causal mask hides a part."""
    whole, side = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}xf32>"
    return f"""
func.func @main(%a: {whole}) -> {whole} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %hidden = stablehlo.constant dense<-1.0e9> : {whole}
  %i = stablehlo.iota dim = 0 : tensor<{rows}x{columns}xi32>
  %j = stablehlo.iota dim = 1 : tensor<{rows}x{columns}xi32>
  %seen = stablehlo.compare GE, %i, %j
    : (tensor<{rows}x{columns}xi32>, tensor<{rows}x{columns}xi32>) -> tensor<{rows}x{columns}xi1>
  %0 = stablehlo.select %seen, %a, %hidden : tensor<{rows}x{columns}xi1>, {whole}
  %1 = stablehlo.reduce(%0 init: %least) applies stablehlo.maximum across dimensions = [1]
    : ({whole}, tensor<f32>) -> {side}
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : ({side}) -> {whole}
  %3 = stablehlo.subtract %0, %2 : {whole}
  %4 = stablehlo.exponential %3 : {whole}
  %5 = stablehlo.reduce(%4 init: %z) applies stablehlo.add across dimensions = [1]
    : ({whole}, tensor<f32>) -> {side}
  %6 = stablehlo.broadcast_in_dim %5, dims = [0] : ({side}) -> {whole}
  %7 = stablehlo.divide %4, %6 : {whole}
  return %7 : {whole}
}}"""


def layer_norm_program(rows: int, columns: int) -> str:
    """Rows less their mean, over their deviation."""
    whole, side = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}xf32>"
    total = f"applies stablehlo.add across dimensions = [1] : ({whole}, tensor<f32>) -> {side}"
    return f"""
func.func @main(%a: {whole}, %w: tensor<{columns}xf32>) -> {whole} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %n = stablehlo.constant dense<{columns}.0> : {side}
  %0 = stablehlo.reduce(%a init: %z) {total}
  %1 = stablehlo.divide %0, %n : {side}
  %2 = stablehlo.broadcast_in_dim %1, dims = [0] : ({side}) -> {whole}
  %3 = stablehlo.subtract %a, %2 : {whole}
  %4 = stablehlo.multiply %3, %3 : {whole}
  %5 = stablehlo.reduce(%4 init: %z) {total}
  %6 = stablehlo.divide %5, %n : {side}
  %7 = stablehlo.rsqrt %6 : {side}
  %8 = stablehlo.broadcast_in_dim %7, dims = [0] : ({side}) -> {whole}
  %9 = stablehlo.multiply %3, %8 : {whole}
  %10 = stablehlo.broadcast_in_dim %w, dims = [1] : (tensor<{columns}xf32>) -> {whole}
  %11 = stablehlo.multiply %9, %10 : {whole}
  return %11 : {whole}
}}"""


def channels_program(rows: int, columns: int) -> str:
    """The means of channels, and what is left of each element: sums along the outer dim."""
    whole, side = f"tensor<{rows}x{columns}xf32>", f"tensor<{columns}xf32>"
    return f"""
func.func @main(%a: {whole}, %w: {side}) -> ({side}, {whole}) {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.broadcast_in_dim %w, dims = [1] : ({side}) -> {whole}
  %1 = stablehlo.subtract %a, %0 : {whole}
  %2 = stablehlo.multiply %1, %1 : {whole}
  %3 = stablehlo.reduce(%2 init: %z) applies stablehlo.add across dimensions = [0]
    : ({whole}, tensor<f32>) -> {side}
  return %3, %1 : {side}, {whole}
}}"""


def heads_program(batch: int, length: int, heads: int, depth: int) -> str:
    """Rows whose heads become an outer dim, times a factor."""
    rows, turned = (
        f"tensor<{batch}x{sizes}x{depth}xf32>"
        for sizes in (f"{length}x{heads}", f"{heads}x{length}")
    )
    return f"""
func.func @main(%a: {rows}, %b: {turned}) -> {turned} {{
  %0 = stablehlo.transpose %a, dims = [0, 2, 1, 3] : ({rows}) -> {turned}
  %1 = stablehlo.multiply %0, %b : {turned}
  return %1 : {turned}
}}"""


def layouts_program(rows: int, pieces: int, columns: int) -> str:
    """Elements of three tensors whose dims are in other orders."""
    first, second, third = (
        f"tensor<{sizes}xf32>"
        for sizes in (
            f"{rows}x{pieces}x{columns}", f"{pieces}x{rows}x{columns}", f"{columns}x{pieces}x{rows}"
        )
    )  # fmt: skip
    return f"""
func.func @main(%a: {first}, %b: {second}, %c: {third}, %d: tensor<{rows}xf32>) -> {first} {{
  %0 = stablehlo.transpose %b, dims = [1, 0, 2] : ({second}) -> {first}
  %1 = stablehlo.transpose %c, dims = [2, 1, 0] : ({third}) -> {first}
  %2 = stablehlo.multiply %a, %0 : {first}
  %3 = stablehlo.add %2, %1 : {first}
  %4 = stablehlo.broadcast_in_dim %d, dims = [0] : (tensor<{rows}xf32>) -> {first}
  %5 = stablehlo.multiply %3, %4 : {first}
  return %5 : {first}
}}"""


def padded_program(rows: int, columns: int) -> str:
    """A transposed tensor between zeros."""
    whole, turned, out = (
        f"tensor<{sizes}xf32>"
        for sizes in (f"{columns}x{rows}", f"{rows}x{columns}", f"{rows + 2}x{columns}")
    )
    return f"""
func.func @main(%a: {whole}, %b: {out}) -> {out} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.transpose %a, dims = [1, 0] : ({whole}) -> {turned}
  %1 = stablehlo.pad %0, %z, low = [1, 0], high = [1, 0], interior = [0, 0]
    : ({turned}, tensor<f32>) -> {out}
  %2 = stablehlo.multiply %1, %b : {out}
  return %2 : {out}
}}"""


def pieces_program(rows: int, columns: int) -> str:
    """Halves of rows that change places, one of them negated: a rotary embedding."""
    half = columns // 2
    columns = 2 * half
    whole, part = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}x{half}xf32>"
    return f"""
func.func @main(%a: {whole}, %c: {whole}, %s: {whole}) -> {whole} {{
  %0 = stablehlo.slice %a [0:{rows}, 0:{half}] : ({whole}) -> {part}
  %1 = stablehlo.slice %a [0:{rows}, {half}:{columns}] : ({whole}) -> {part}
  %2 = stablehlo.negate %1 : {part}
  %3 = stablehlo.concatenate %2, %0, dim = 1 : ({part}, {part}) -> {whole}
  %4 = stablehlo.multiply %a, %c : {whole}
  %5 = stablehlo.multiply %3, %s : {whole}
  %6 = stablehlo.add %4, %5 : {whole}
  return %6 : {whole}
}}"""


def lookup_program(table: int, rows: int, columns: int) -> str:
    """Rows of a table at indices, and what is left of them after their sums."""
    whole, out, at = (
        f"tensor<{table}x{columns}xf32>", f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}x1xi32>"
    )  # fmt: skip
    return f"""
func.func @main(%a: {whole}, %at: {at}, %b: {out}) -> {out} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = "stablehlo.gather"(%a, %at) {{dimension_numbers = #stablehlo.gather<offset_dims = [1],
      collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
      slice_sizes = array<i64: 1, {columns}>}} : ({whole}, {at}) -> {out}
  %1 = stablehlo.add %0, %b : {out}
  %2 = stablehlo.reduce(%1 init: %z) applies stablehlo.add across dimensions = [1]
    : ({out}, tensor<f32>) -> tensor<{rows}xf32>
  %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<{rows}xf32>) -> {out}
  %4 = stablehlo.subtract %1, %3 : {out}
  return %4 : {out}
}}"""


def chain_of(op: str, count: int) -> str:
    """A few of one op on elements that the nearest cache holds."""
    shape = f"tensor<{count}xf32>"
    operands = "%{0}, %b" if op in _OF_TWO else "%{0}"
    steps = [f"%{n + 1} = stablehlo.{op} {operands.format(n or 'a')} : {shape}" for n in range(3)]
    lines = "\n  ".join(steps)
    head = f"func.func @main(%a: {shape}, %b: {shape}) -> {shape}"
    return f"{head} {{\n  {lines}\n  return %3 : {shape}\n}}"
