"""Examples of ops with windows: strides, dilations, and padding that may be negative."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dtypes, seeds, shapes
from tests.ops.example import Example
from tests.ops.examples.convolution import each, kernels, paddings, small
from tests.ops.examples.reduce import fold_region, folds
from tests.ops.program import region, scalar
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.ops.elementwise.pointwise import Add, Compare
from weft.ops.window import ReduceWindow, SelectAndScatter, make_window

windows = st.one_of(st.just(1), kernels)


@composite
def reduce_window(draw: DrawFn) -> Example:
    shape = draw(shapes(0, 3))
    rank = len(shape)
    sizes = tuple(draw(windows) for _ in shape)
    strides, padding = draw(each(small, rank)), draw(paddings(rank))
    base, dilations = draw(each(small, rank)), draw(each(small, rank))
    window = make_window("window", sizes, strides, padding, base, dilations)
    inputs, inits, body, wide = draw(folds(shape))
    outs = tuple(TensorType(window.shape("shape", shape), dtype) for dtype in wide)
    op = ReduceWindow(sizes, outs, strides, base, dilations, padding)
    return Example(op, (*inputs, *inits), (body,))


@composite
def select_and_scatter(draw: DrawFn) -> Example:
    shape = draw(shapes(0, 3))
    rank = len(shape)
    sizes = tuple(draw(windows) for _ in shape)
    strides, padding = draw(each(small, rank)), draw(each_side(sizes))
    window = make_window("window", sizes, strides, padding)
    dtype = draw(dtypes(("f32", "f64", "i32", "bf16")))
    types = (scalar(dtype),) * 2
    direction = draw(st.sampled_from(("GE", "LT")))
    select = region(types, (Compare(direction), (0, 1)), results=(2,))
    operand = array(shape, dtype, draw(seeds))
    source = array(tuple(window.shape("shape", shape)), dtype, draw(seeds))
    op = SelectAndScatter(sizes, TensorType(shape, dtype), strides, padding)
    init = np.zeros((), dtype.numpy)
    return Example(op, (operand, source, init), (select, fold_region([Add], [dtype])))


@composite
def each_side(draw: DrawFn, sizes: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
    """Padding by less than the window, so that every window sees an element."""
    if draw(st.booleans()):
        return None
    return tuple((draw(st.integers(0, s - 1)), draw(st.integers(0, s - 1))) for s in sizes)


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    ReduceWindow: reduce_window(),
    SelectAndScatter: select_and_scatter(),
}
