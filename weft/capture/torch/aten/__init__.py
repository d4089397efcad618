"""The lowerings of ATen's ops, by name of the overload: one file for each family."""

from weft.capture.torch import attention, constrain, exchange, grouped
from weft.capture.torch.aten import (
    blends,
    contract,
    convert,
    convolution,
    creation,
    fourier,
    indexing,
    integers,
    linalg,
    matrix_exponential,
    pointwise,
    pooling,
    random,
    reduce,
    resize,
    sorting,
    views,
)
from weft.capture.torch.build import AtenLowering
from weft.capture.torch.training import recompute

FAMILIES = (
    pointwise,
    blends,
    integers,
    convert,
    creation,
    fourier,
    views,
    reduce,
    indexing,
    sorting,
    contract,
    linalg,
    matrix_exponential,
    convolution,
    pooling,
    resize,
    random,
    constrain,
    attention,
    grouped,
    exchange,
    recompute,
)
LOWERINGS: dict[str, AtenLowering] = {
    name: lowering for family in FAMILIES for name, lowering in family.LOWERINGS.items()
}
