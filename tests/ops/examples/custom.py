"""Examples of custom calls, and of what goes in and out of a program while it runs."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import COMMON, array, dtypes, seeds, shapes
from tests.ops.example import Example
from tests.ops.program import Program
from weft.ir.op import Op
from weft.ir.types import type_of
from weft.ops.custom_calls import custom
from weft.ops.custom_calls.declaration import config_text

values = st.builds(array, shapes(0, 2), dtypes(COMMON), seeds)


@composite
def custom_call(draw: DrawFn) -> Example:
    operand = draw(values)
    name = draw(st.sampled_from(("Sharding", "LayoutConstraint", "annotate_device_placement")))
    return Example(custom.CustomCall(name, (type_of(operand),)), (operand,))


# Results of each decomposition of square matrices: the dims behind the batch dims, and their type.
MATRICES: dict[str, tuple[dict[str, int], tuple[tuple[int, str], ...]]] = {
    "weft.lu": ({}, ((2, ""), (1, "int32"), (1, "int32"))),
    "weft.qr": ({}, ((2, ""), (1, ""))),
    "weft.eigh": ({"lower": True}, ((2, ""), (1, ""))),
    "weft.svd": ({"vectors": True, "full_matrices": False}, ((1, ""), (2, ""), (2, ""))),
    "weft.schur": ({"vectors": True}, ((2, ""), (2, ""))),
    "weft.eig": ({"right": True}, ((1, "complex"), (2, "complex"))),
}


@composite
def decomposition(draw: DrawFn) -> Example:
    """Matrices that are symmetric, and far from singular."""
    name = draw(st.sampled_from(sorted(MATRICES)))
    config, outs = MATRICES[name]
    batch, size = draw(st.sampled_from([(), (2,), (2, 4)])), draw(st.integers(1, 4))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    a = np.random.default_rng(draw(seeds)).standard_normal((*batch, size, size)).astype(dtype)
    a = a + a.swapaxes(-1, -2) + 4 * np.diag(np.arange(size, dtype=dtype))
    named = {"": dtype, "int32": np.int32, "complex": np.result_type(dtype, np.complex64)}
    types = tuple(type_of(np.empty((*batch, *[size] * rank), named[kind])) for rank, kind in outs)
    call = custom.CustomCall(name, types, backend_config=config_text(**config), api_version=4)
    return Example(call, (a,))


TRANSFERS = """
func.func @main(%0: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>) {
  %1:2 = "interpreter.run_parallel"(%0) {infeed = [@feed], programs = [[@left, @right]]}
    : (tensor<2xf32>) -> (tensor<2xf32>, tensor<2xf32>)
  return %1#0, %1#1 : tensor<2xf32>, tensor<2xf32>
}
func.func @feed() -> tensor<2xf32> {
  %0 = stablehlo.constant dense<[5.0, 7.0]> : tensor<2xf32>
  return %0 : tensor<2xf32>
}
func.func @left(%0: tensor<2xf32>) -> tensor<2xf32> {
  %1 = stablehlo.after_all : !stablehlo.token
  %2 = "stablehlo.send"(%0, %1) {
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>
  } : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
  %3:2 = "stablehlo.infeed"(%2) {infeed_config = ""}
    : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)
  %4 = "stablehlo.outfeed"(%3#0, %3#1) {outfeed_config = ""}
    : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
  return %3#0 : tensor<2xf32>
}
func.func @right() -> tensor<2xf32> {
  %0 = stablehlo.after_all : !stablehlo.token
  %1:2 = "stablehlo.recv"(%0) {
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>
  } : (!stablehlo.token) -> (tensor<2xf32>, !stablehlo.token)
  return %1#0 : tensor<2xf32>
}
"""


def transfer(op: type[Op]) -> SearchStrategy[Example]:
    """Two devices, of which the left one sends what it has and returns what is fed in."""
    return seeds.map(
        lambda seed: Program.holding(
            op, TRANSFERS, np.random.default_rng(seed).standard_normal(2, np.float32)
        )
    )


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    custom.CustomCall: custom_call() | decomposition(),
    custom.Infeed: transfer(custom.Infeed),
    custom.Outfeed: transfer(custom.Outfeed),
    custom.Send: transfer(custom.Send),
    custom.Recv: transfer(custom.Recv),
    custom.Print: values.map(lambda a: Example(custom.Print(), (a,))),
    custom.InterpreterProbe: values.map(lambda a: Example(custom.InterpreterProbe("here"), (a,))),
}
