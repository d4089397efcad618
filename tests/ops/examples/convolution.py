"""Examples of convolutions: any order of dims, groups, strides, dilations, padding and reversal."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, seeds
from tests.ops.example import Example
from tests.ops.examples.contract import PRECISIONS, element_types
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.ops.convolution import ConvDims, Convolution, conv_shape
from weft.ops.window import PaddingPairs, make_window

sizes = st.sampled_from((2, 4, 1, 3, 8, 6, 0))
kernels = st.sampled_from((1, 2, 3, 5))
small = st.sampled_from((1, 2, 1, 3))
edges = st.sampled_from((0, 1, 0, 2, -1))


@composite
def conv_dims(draw: DrawFn, spatial: int) -> ConvDims:
    """The dims of input, kernel and output, each in any order."""
    orders = [draw(st.permutations(range(spatial + 2))) for _ in range(3)]
    parts = [(first, second, tuple(rest)) for first, second, *rest in orders]
    return ConvDims(*parts[0], *parts[1], *parts[2])


@composite
def each(draw: DrawFn, values: st.SearchStrategy[int], count: int) -> tuple[int, ...] | None:
    """One value for each dim of the window, or none at all."""
    if draw(st.booleans()):
        return None
    return tuple(draw(values) for _ in range(count))


@composite
def paddings(draw: DrawFn, count: int) -> PaddingPairs | None:
    """Padding for each dim of the window, or none at all."""
    if draw(st.booleans()):
        return None
    return tuple((draw(edges), draw(edges)) for _ in range(count))


@composite
def convolution(draw: DrawFn) -> Example:
    spatial = draw(st.integers(0, 2))
    numbers = draw(conv_dims(spatial))
    # StableHLO's interpreter rounds each group to the operands' type, whatever the result's.
    operand, result = draw(element_types().filter(lambda pair: pair[0] is pair[1]))
    groups = draw(st.sampled_from((1, 2, 4)))
    by_batch = draw(st.booleans())
    batches, features = (groups, 1) if by_batch else (1, groups)
    depth = draw(st.sampled_from((1, 2, 4)))
    lhs, rhs = [0] * (spatial + 2), [0] * (spatial + 2)
    lhs[numbers.input_batch_dimension] = batches * draw(st.sampled_from((1, 2, 4, 3)))
    lhs[numbers.input_feature_dimension] = features * depth
    rhs[numbers.kernel_input_feature_dimension] = depth
    rhs[numbers.kernel_output_feature_dimension] = groups * draw(st.sampled_from((1, 2, 4, 3)))
    for a, b in zip(
        numbers.input_spatial_dimensions, numbers.kernel_spatial_dimensions, strict=True
    ):
        lhs[a], rhs[b] = draw(sizes), draw(kernels)
    window = tuple(rhs[d] for d in numbers.kernel_spatial_dimensions)
    strides, padding = draw(each(small, spatial)), draw(paddings(spatial))
    dilations = draw(each(small, spatial)), draw(each(small, spatial))
    left, right = TensorType(tuple(lhs), operand), TensorType(tuple(rhs), operand)
    moved = make_window("window", window, strides, padding, *dilations)
    shape = conv_shape("shape", left, right, numbers, moved, features, batches)
    reversal = tuple(draw(st.booleans()) for _ in range(spatial)) if draw(st.booleans()) else None
    op = Convolution(
        numbers,
        features,
        batches,
        TensorType(shape, result),
        strides,
        padding,
        *dilations,
        reversal,
        draw(st.sampled_from(PRECISIONS)),
    )
    arrays = tuple(array(t.sizes, operand, draw(seeds)) for t in (left, right))
    return Example(op, arrays)


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {Convolution: convolution()}
