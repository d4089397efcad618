"""Convolutions as kernels: what they mean, and what they become, is what the reference gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emit.llvm.single.lone_nodes import stacked
from tests.ops.example import Example
from tests.ops.examples.convolution import EXAMPLES
from tests.tolerance import assert_close
from weft.emit.llvm.emit import emit
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.target import LLVM
from weft.evaluate import evaluate
from weft.ir.types import F32, Array, TensorType, type_of
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Kernel
from weft.kernels.stacked_node import StackedNode
from weft.ops.convolution import ConvDims, Convolution, conv_shape, conv_window
from weft.tile.drafts.convolution import convolution_kernel

NHWC = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
NCHW = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))
Pair = tuple[int, int]


def kernel_of(sample: Example, sizes: Pair, masks: Pair) -> Kernel | None:
    """The kernel of an example whose operands vary along leading dims."""
    return convolution_kernel(
        StackedNode(sample.node(), masks, (masks[0] | masks[1],)), sizes, LLVM()
    )


def check(sample: Example, kernel: Kernel, stacks: list[Array], made: Array) -> None:
    """Compare with the reference, device by device."""
    lead = made.shape[:2]
    for place in np.ndindex(*lead):
        own = [s[tuple(np.minimum(place, np.array(s.shape[:2]) - 1))] for s in stacks]
        (expected,) = evaluate(sample.module(), *own)
        assert_close(made[place], np.asarray(expected), length=kernel.points)


@given(data=st.data())
def test_kernels_mean_what_the_reference_gives(data: st.DataObject):
    sample = data.draw(EXAMPLES[Convolution])
    sizes, masks = (2, 3), (data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3)))
    kernel = kernel_of(sample, sizes, masks)
    if kernel is None:
        return
    stacks = [stacked(np.asarray(a), m, sizes) for a, m in zip(sample.arrays, masks, strict=True)]
    (made,) = interpret(kernel, stacks)
    check(sample, kernel, stacks, made.reshape(kernel.operands[2].shape))


def example(
    lhs: tuple[int, ...], rhs: tuple[int, ...], dims: ConvDims, **options: object
) -> Example:
    """A convolution of small whole numbers."""
    random = np.random.default_rng(0)
    arrays = tuple(random.integers(-3, 4, shape).astype(np.float32) for shape in (lhs, rhs))
    groups = options.pop("feature_groups", 1), options.pop("batch_groups", 1)
    names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation")
    window = conv_window("conv", type_of(arrays[1]), dims, *[options.get(n) for n in names])  # type: ignore[arg-type]
    shape = conv_shape("conv", *map(type_of, arrays), dims, window, *groups)  # type: ignore[call-arg,arg-type]
    op = Convolution(dims, *groups, TensorType(shape, F32), **options)  # type: ignore[arg-type]
    return Example(op, arrays)


PADDED = ((1, 1), (2, 0))
CASES = [
    example((2, 8, 9, 5), (3, 3, 5, 6), NHWC),
    example((2, 8, 9, 5), (3, 3, 5, 40), NHWC, padding=PADDED),
    example(
        (2, 8, 9, 5),
        (3, 3, 5, 6),
        NHWC,
        padding=PADDED,
        window_strides=(2, 3),
        rhs_dilation=(1, 2),
        window_reversal=(True, False),
    ),
    example((2, 8, 9, 6), (3, 3, 3, 6), NHWC, padding=PADDED, feature_groups=2),
    example((4, 8, 9, 5), (3, 3, 5, 6), NHWC, padding=PADDED, batch_groups=2),
    example((2, 8, 9, 20), (3, 3, 1, 20), NHWC, padding=PADDED, feature_groups=20),
    example((2, 6, 8, 9), (12, 1, 3, 3), NCHW, padding=PADDED, feature_groups=6),
    example((2, 5, 8, 9), (6, 5, 3, 3), NCHW, padding=PADDED),
    example((2, 8, 9, 5), (3, 3, 5, 6), NHWC, padding=PADDED, lhs_dilation=(2, 1)),
    example(
        (2, 5, 8, 9),
        (6, 5, 3, 4),
        NCHW,
        padding=((-1, 1), (3, -2)),
        lhs_dilation=(2, 3),
        window_reversal=(True, True),
    ),
]


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("masks", [(0, 0), (1, 2)])
def test_emitted_kernels_give_what_the_reference_gives(number: int, masks: Pair):
    sample, sizes = CASES[number], (2, 3)
    kernel = kernel_of(sample, sizes, masks)
    assert kernel is not None
    stacks = [stacked(a, m, sizes) for a, m in zip(sample.arrays, masks, strict=True)]
    made = np.full(kernel.operands[2].shape, 7, np.float32)
    (loaded,) = load([emit(kernel)])
    commands = CommandList()
    commands.kernel(loaded, [a.ctypes.data for a in (*stacks, made)])
    commands.run()
    check(sample, kernel, stacks, made)


def test_steps_over_an_input_that_is_spread_out_are_left_to_others():
    sample = example((2, 8, 9, 5), (3, 3, 5, 6), NHWC, lhs_dilation=(2, 1), window_strides=(2, 1))
    assert kernel_of(sample, (1, 1), (0, 0)) is None
