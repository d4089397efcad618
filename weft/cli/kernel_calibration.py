"""Measured overheads of small kernels on this processor.

Small programs are compiled, every kernel of them is timed in a launch queue of its own, and the
machine's overheads are fitted to what their times exceed the roofline by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from weft.cli.call_calibration import call_overheads, least
from weft.compiled import compile as compile_program
from weft.cost.kernel_terms import kernel_terms
from weft.cost.kernels import computing_seconds
from weft.kernels.attention import Attention
from weft.kernels.group import AnyKernel
from weft.machine import Machine
from weft.machine.machine import OVERHEADS
from weft.run.bind import loaded_kernels
from weft.target import Target

_REPEATS = 16  # launches in one queue: the call of the queue does not count
_SMALL = 1 << 18  # bytes
_ALIGNED = 64  # bytes
_SWEEPS = 2000  # over a dozen numbers

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


def overheads(machine: Machine, seconds: float) -> dict[str, float]:
    """Seconds of a unit of each overhead, each program measured for about so many seconds."""
    found = dict(call_overheads(10 * seconds))
    timed = [pair for text in _kernel_programs() for pair in kernel_times(text, seconds)]
    return found | fitted(timed, machine) | {"wake": _wake(machine, timed)}


def fitted(timed: Sequence[tuple[AnyKernel, float]], machine: Machine) -> dict[str, float]:
    """The overheads that explain best what kernels take beyond the roofline, by relative error."""
    terms = [kernel_terms(kernel) for kernel, _ in timed]
    names = [name for name in OVERHEADS if any(row.get(name) for row in terms)]
    counts = np.array([[row.get(name, 0.0) for name in names] for row in terms])
    spent = np.array([time for _, time in timed])
    rest = [
        spent - machine.launch - machine.threads * roofline(kernel, machine)
        for kernel, spent in timed
    ]
    # Relative errors: else the longest kernels alone would decide.
    weights = 1 / spent
    solved = positive_least_squares(counts * weights[:, None], np.array(rest) * weights)
    return dict(zip(names, map(float, solved), strict=True))


def roofline(kernel: AnyKernel, machine: Machine) -> float:
    """Seconds of arithmetic that overheads come on top of; of attention they are all."""
    return 0.0 if isinstance(kernel, Attention) else computing_seconds(kernel, machine)


def positive_least_squares(
    matrix: npt.NDArray[np.float64], wanted: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The least squares solution with no negative entries, by coordinate descent."""
    # Columns of one size: counts of elements and of launches differ by orders of magnitude.
    scale = np.sqrt((matrix**2).sum(0))
    scale[scale == 0] = 1.0
    columns, solution = matrix / scale, np.zeros(matrix.shape[1])
    rest = wanted.astype(np.float64)
    for _ in range(_SWEEPS):
        for n in range(len(solution)):
            moved = max(0.0, solution[n] + columns[:, n] @ rest) - solution[n]
            rest = rest - moved * columns[:, n]
            solution[n] += moved
    result: npt.NDArray[np.float64] = solution / scale
    return result


def _wake(machine: Machine, timed: Sequence[tuple[AnyKernel, float]]) -> float:
    """Seconds of sharing a kernel among threads: as long as a typical small one takes."""
    if machine.threads == 1:
        return 0.0
    return float(np.median([seconds for _, seconds in timed]))


def kernel_times(text: str, seconds: float) -> Iterator[tuple[AnyKernel, float]]:
    """Every kernel of a program with the seconds of one launch."""
    local = compile_program(text, tune="remembered").program.local
    assert local.target is not None and local.calls is not None, "compiled to kernels"
    for launch, loaded in loaded_kernels(local.calls):
        yield launch.kernel, launch_seconds(local.target, launch.kernel, loaded, seconds)


def launch_seconds(target: Target, kernel: AnyKernel, loaded: object, seconds: float) -> float:
    """Seconds of a launch of a kernel, many of them in one queue, on small numbers."""
    buffers, numbers = [], np.random.default_rng(0)
    for operand in kernel.operands:
        whole = np.zeros(operand.nbytes + _ALIGNED, np.uint8)
        begin = -whole.ctypes.data % _ALIGNED
        buffers.append(whole[begin : begin + operand.nbytes])
        # A sort of equal numbers is no sort, and denormal products take much longer.
        if operand.dtype.is_float:
            drawn = numbers.uniform(0.999, 1.001, operand.size)
            buffers[-1].view(operand.dtype.numpy)[:] = drawn.astype(operand.dtype.numpy)
    # Few launches where they are long: others interrupt long queues more often.
    repeats = _REPEATS if sum(operand.nbytes for operand in kernel.operands) < _SMALL else 1
    queue = target.commands()
    for _ in range(repeats):
        queue.kernel(loaded, [buffer.ctypes.data for buffer in buffers])
    return least(queue.run, seconds) / repeats


def _kernel_programs() -> Iterator[str]:
    """Programs of products, rows, columns, attention and ops that run element by element."""
    yield from (product_program(*sizes) for sizes in _PRODUCTS)
    yield from (rows_program(*sizes) for sizes in _ROWS)
    yield from (columns_program(*sizes) for sizes in _ROWS)
    yield from (sides_program(*sizes) for sizes in _SIDES)
    yield from (attention_program(*sizes) for sizes in _HEADS)
    yield from (gradient_program(*sizes) for sizes in _GRADIENTS)
    yield from (sort_program(*sizes, dim) for sizes in _ROWS[:2] for dim in (0, 1))
    yield from (scatter_program(*sizes) for sizes in _ROWS)
    yield from (pool_program(*sizes) for sizes in _POOLS)


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


def attention_program(heads: int, length: int, depth: int) -> str:
    """Softmax attention of equally many queries and keys."""
    tensor = f"tensor<{heads}x{length}x{depth}xf32>"
    scores, side = f"tensor<{heads}x{length}x{length}xf32>", f"tensor<{heads}x{length}xf32>"
    return f"""
func.func @main(%q: {tensor}, %k: {tensor}, %v: {tensor}) -> {tensor} {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = stablehlo.dot_general %q, %k, batching_dims = [0] x [0], contracting_dims = [2] x [2]
    : ({tensor}, {tensor}) -> {scores}
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
    : ({scores}, {tensor}) -> {tensor}
  return %8 : {tensor}
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


def scatter_program(rows: int, columns: int) -> str:
    """Rows that are added at indices."""
    whole, at = f"tensor<{rows}x{columns}xf32>", f"tensor<{rows}x1xi32>"
    return f"""
func.func @main(%a: {whole}, %at: {at}, %b: {whole}) -> {whole} {{
  %0 = "stablehlo.scatter"(%a, %at, %b) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}}
    : ({whole}, {at}, {whole}) -> {whole}
  return %0 : {whole}
}}"""


def pool_program(batch: int, side: int, channels: int) -> str:
    """Maxima of windows of two by two."""
    whole = f"tensor<{batch}x{side}x{side}x{channels}xf32>"
    pooled = f"tensor<{batch}x{side // 2}x{side // 2}x{channels}xf32>"
    return f"""
func.func @main(%a: {whole}) -> {pooled} {{
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %0 = "stablehlo.reduce_window"(%a, %least) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.maximum %x, %y : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }}) {{window_dimensions = array<i64: 1, 2, 2, 1>, window_strides = array<i64: 1, 2, 2, 1>}}
    : ({whole}, tensor<f32>) -> {pooled}
  return %0 : {pooled}
}}"""


def sort_program(rows: int, columns: int, dim: int) -> str:
    """Sorted columns or rows."""
    whole = f"tensor<{rows}x{columns}xf32>"
    return f"""
func.func @main(%a: {whole}) -> {whole} {{
  %0 = "stablehlo.sort"(%a) ({{
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %1 = stablehlo.compare LT, %x, %y, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }}) {{dimension = {dim} : i64, is_stable = true}} : ({whole}) -> {whole}
  return %0 : {whole}
}}"""
