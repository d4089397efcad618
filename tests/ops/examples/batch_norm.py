"""Examples of batch normalization."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dtypes, seeds, shapes
from tests.ops.example import Example
from weft.ir.op import Op
from weft.ir.types import Array, type_of
from weft.ops.batch_norm import BatchNormGrad, BatchNormInference, BatchNormTraining

epsilons = st.sampled_from([float(np.float32(e)) for e in (1e-5, 0.01, 1.5)])


@composite
def operands(draw: DrawFn, flat: int) -> tuple[int, list[Array]]:
    """The feature dim, a full array, and arrays of one positive value a feature."""
    shape = draw(shapes(1, 3))
    feature = draw(st.integers(0, len(shape) - 1))
    dtype = draw(dtypes(("f32", "f64", "bf16", "f16")))
    full = array(shape, dtype, draw(seeds))
    one = np.ones((), dtype.numpy)
    values = [np.abs(array((shape[feature],), dtype, draw(seeds))) + one for _ in range(flat)]
    return feature, [full, *values]


@composite
def inference(draw: DrawFn) -> Example:
    feature, arrays = draw(operands(4))
    return Example(BatchNormInference(draw(epsilons), feature), tuple(arrays))


@composite
def training(draw: DrawFn) -> Example:
    feature, arrays = draw(operands(2))
    return Example(BatchNormTraining(draw(epsilons), feature), tuple(arrays))


@composite
def grad(draw: DrawFn) -> Example:
    feature, (full, *flat) = draw(operands(3))
    output = array(full.shape, type_of(full).dtype, draw(seeds))
    return Example(BatchNormGrad(draw(epsilons), feature), (full, *flat, output))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    BatchNormInference: inference(),
    BatchNormTraining: training(),
    BatchNormGrad: grad(),
}
