"""Running folds, windows of all kinds, and the backward pass of pooling."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.emit.llvm.single.lone_nodes import (
    check_alone,
    combiner,
    lone_kernel,
    node_of,
    scalar_region,
)
from tests.tolerance import assert_close
from weft.emit.llvm.single.emit import emit_single_node
from weft.errors import Unsupported
from weft.ir.module import Region, apply
from weft.ir.op import Op
from weft.ir.types import DTYPES, F32, I32, Array, DType, TensorType, type_of
from weft.ops.elementwise.pointwise import Add, And, Compare, Maximum, Minimum, Multiply, Or, Xor
from weft.ops.window import ReduceWindow, SelectAndScatter, make_window

RANDOM = np.random.default_rng(0)
NEUTRAL: dict[type[Op], float] = {Add: 0, Multiply: 1, Maximum: -9, Minimum: 9}


def numbers(shape: tuple[int, ...], dtype: DType = F32) -> Array:
    return RANDOM.integers(-3, 4, shape).astype(dtype.numpy)


def cumulative(shape: tuple[int, ...], dim: int, dtype: DType, backward: bool) -> ReduceWindow:
    """A fold of everything up to an element, or from it on."""
    sizes = tuple(n if d == dim else 1 for d, n in enumerate(shape))
    padding = tuple((0, n - 1) if backward else (n - 1, 0) for n in sizes)
    return ReduceWindow(sizes, (TensorType(shape, dtype),), padding=padding)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("op", [Add, Maximum])
@pytest.mark.parametrize("shape", [(1,), (3, 15), (2, 16), (2, 100), (65,)])
def test_running_folds_along_rows(shape: tuple[int, ...], op: type[Op], backward: bool):
    x, init = RANDOM.standard_normal(shape).astype(np.float32), np.float32(NEUTRAL[op])
    check_alone(
        cumulative(shape, len(shape) - 1, F32, backward),
        x,
        init,
        regions=(combiner(op(), F32),),
        known=(1,),
        sizes=(2,),
        masks=(1, 0),
        compare=partial(assert_close, length=shape[-1]),
    )


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("shape", [(7, 3), (5, 70), (20, 3, 11)])
def test_running_folds_down_columns(shape: tuple[int, ...], backward: bool):
    op, x = cumulative(shape, 0, F32, backward), numbers(shape)
    check_alone(op, x, np.float32(0), regions=(combiner(Add(), F32),), known=(1,))


@pytest.mark.parametrize("name", ["bf16", "f64", "i8", "i64", "complex<f32>"])
@pytest.mark.parametrize("dim", [0, 1])
def test_running_folds_of_types(name: str, dim: int):
    dtype = DTYPES[name]
    op, x = cumulative((35, 35), dim, dtype, False), numbers((35, 35), dtype)
    zero = np.zeros((), dtype.numpy)
    check_alone(op, x, zero, regions=(combiner(Add(), dtype),), known=(1,))


@pytest.mark.parametrize("op", [Xor, And, Or, Multiply, Minimum])
def test_running_folds_of_integers(op: type[Op]):
    x, init = numbers((3, 50), I32), np.int32({Xor: 0, And: -1, Or: 0, Multiply: 1}.get(op, 9))
    window = cumulative((3, 50), 1, I32, False)
    check_alone(window, x, init, regions=(combiner(op(), I32),), known=(1,))


def test_folds_with_nan_and_infinities():
    x = numbers((3, 50))
    x[0, 20], x[1, 30], x[2, 0] = np.nan, np.inf, -0.0
    for op in (Add, Maximum):
        window = cumulative((3, 50), 1, F32, False)
        init = np.float32(NEUTRAL[op])
        check_alone(window, x, init, regions=(combiner(op(), F32),), known=(1,))


def test_an_initial_value_that_counts_is_folded_as_often_as_padding_is_seen():
    x = numbers((3, 20))
    op = cumulative((3, 20), 1, F32, False)
    check_alone(op, x, np.float32(2), regions=(combiner(Add(), F32),), known=(1,))
    check_alone(op, x, np.float32(0), regions=(combiner(Add(), F32),))


def test_several_inputs_at_once():
    both = scalar_region(
        lambda a, b, c, d: [apply(Add(), a, c), apply(Maximum(), b, d)], F32, I32, F32, I32
    )
    region = Region(both.args, both.nodes, tuple(n.results[0] for n in both.nodes))
    shape = (3, 40)
    outs = (TensorType(shape, F32), TensorType(shape, I32))
    op = ReduceWindow((1, 40), outs, padding=((0, 0), (39, 0)))
    arrays = (numbers(shape), numbers(shape, I32), np.float32(0), np.int32(-9))
    check_alone(op, *arrays, regions=(region,), known=(2, 3))


POOLS = [  # sizes, strides, padding, base dilations, window dilations
    ((1, 2, 2, 1), (1, 2, 2, 1), ((0, 0),) * 4, None, None),
    ((1, 3, 3, 1), (1, 2, 1, 1), ((0, 0), (1, 1), (2, 1), (0, 0)), None, None),
    ((1, 1, 3, 3), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 1), (1, 0)), None, None),
    ((1, 1, 3, 5), (1, 1, 1, 1), ((0, 0), (0, 0), (-1, 1), (2, -1)), None, None),
    ((1, 1, 3, 3), None, ((0, 0), (0, 0), (1, 1), (1, 0)), (1, 2, 2, 3), (1, 1, 2, 2)),
    ((1, 2, 3, 1), None, ((0, 0), (0, 0), (2, -1), (0, 0)), None, (1, 1, 2, 1)),
]


@pytest.mark.parametrize("op", [Add, Maximum])
@pytest.mark.parametrize("known", [(), (1,)])
@pytest.mark.parametrize("pool", POOLS)
def test_windows(pool: tuple[object, ...], op: type[Op], known: tuple[int, ...]):
    sizes, strides, padding, base, spread = pool
    x = numbers((2, 9, 11, 37 if sizes[-1] > 1 else 3))  # type: ignore[index]
    window = make_window("window", sizes, strides, padding, base, spread)  # type: ignore[arg-type]
    out = TensorType(window.shape("window", x.shape), F32)
    made = ReduceWindow(sizes, (out,), strides, base, spread, padding)  # type: ignore[arg-type]
    init = np.float32(NEUTRAL[op])
    check_alone(
        made, x, init, regions=(combiner(op(), F32),), known=known, sizes=(2,), masks=(1, 0)
    )


@pytest.mark.parametrize("direction", ["GE", "LE", "GT"])
@pytest.mark.parametrize("pool", POOLS[:3])
def test_the_backward_pass_of_pooling(pool: tuple[object, ...], direction: str):
    sizes, strides, padding, _, _ = pool
    x = numbers((2, 7, 8, 5))
    x[RANDOM.random(x.shape) < 0.05] = np.nan
    window = make_window("window", sizes, strides, padding)  # type: ignore[arg-type]
    source = numbers(tuple(int(str(n)) for n in window.shape("window", x.shape)))
    op = SelectAndScatter(sizes, type_of(x), strides, padding)  # type: ignore[arg-type]
    regions = (combiner(Compare(direction), F32), combiner(Add(), F32))
    check_alone(op, x, source, np.float32(0.5), regions=regions, sizes=(2,), masks=(1, 0, 0))


def test_selections_from_large_windows_are_refused():
    x = numbers((20, 20))
    op = SelectAndScatter((10, 10), type_of(x), (10, 10))
    regions = (combiner(Compare("GE"), F32), combiner(Add(), F32))
    node = node_of(op, x, numbers((2, 2)), np.float32(0), regions=regions)
    with pytest.raises(Unsupported, match="a window of"):
        emit_single_node(lone_kernel(node))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("op", [Add, Maximum])
def test_long_rows_are_folded_in_pieces(op: type[Op], backward: bool):
    shape = (2, 3 * (1 << 15) + 77)
    x, init = numbers(shape, I32), np.int32(NEUTRAL[op])
    window = cumulative(shape, 1, I32, backward)
    check_alone(window, x, init, regions=(combiner(op(), I32),), known=(1,))
