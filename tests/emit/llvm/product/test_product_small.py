"""Products of few numbers, which run as plain loops, and padding that is packed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.emit.llvm.product.products import BF16, F16, I8, check, product
from tests.kernels.building import Building
from tests.tolerance import assert_close
from weft.emit.llvm.emit import emit
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.jit.processor import host
from weft.emit.llvm.pool.commands import CommandList
from weft.ir.types import F32, F64, I32, DType
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Affine, Choose
from weft.kernels.rewriting import pad_by_loads
from weft.ops.elementwise.transcendental import Tanh

LAYOUTS = [("bmk", "bkn", "bmn"), ("bkm", "bkn", "bmn"), ("bmk", "bnk", "bmn"), ("km", "kn", "nm")]
HELD = [(F32, F32), (F64, F64), (BF16, F32), (F16, F32), (I32, I32), (I8, I32)]


@given(
    st.tuples(*[st.integers(0, 7)] * 4).filter(lambda sizes: np.prod(sizes) <= 256),
    st.sampled_from(LAYOUTS),
    st.sampled_from(HELD),
)
def test_few_numbers(
    sizes: tuple[int, ...], dims: tuple[str, str, str], types: tuple[DType, DType]
):
    named = dict(zip("bmnk", sizes, strict=True))
    if "b" not in dims[0]:
        del named["b"]
    b, total = product(dims, named, *types)
    b.write(dims[2], b.apply(Tanh(), total) if types[0].is_float else total)
    kernel, arrays = b.kernel("packed"), b.arrays()
    (expected,) = interpret(kernel, arrays)
    made = emit(kernel, host())
    assert not any("pack" in phase.function for phase in made.phases)
    found = np.zeros_like(expected)
    commands = CommandList()
    held = [np.ascontiguousarray(x) for x in arrays]
    commands.kernel(load([made])[0], [int(x.ctypes.data) for x in (*held, found)])
    commands.run()
    assert_close(found, expected, max(1, named["k"]))


def convolution(channels: int, side: int, pad: float | None) -> Building:
    """A 3x3 window over images of odd sizes; `pad` fills what a load leaves at 0."""
    b = Building(n=2, h=side, w=side + 2, o=9, y=3, x=3, c=channels)
    image, weights = b.input(2, side, side + 2, channels), b.input(3, 3, channels, 9)
    places = dict(zip(b.names, b.rows("nhwc").strides, strict=True))
    both = places | {"y": places["h"], "x": places["w"]}
    at = Affine(tuple(both[name] for name in b.names), -places["h"] - places["w"])
    guards = [b.guard(0, side, -1, h=1, y=1), b.guard(0, side + 2, -1, w=1, x=1)]
    left = b.load(image, at, guards)
    if pad is not None:
        left = b.choose(guards, left, b.fill(pad))
    b.write("nhwo", b.contract(left, b.load(weights, b.rows("yxco")), "yxc"))
    return b


@pytest.mark.parametrize("pad", [None, 0, 0.0, -0.0, 1.5])
@pytest.mark.parametrize(("channels", "side"), [(1, 3), (8, 5), (16, 9), (32, 1), (70, 4)])
def test_padding(channels: int, side: int, pad: float | None):
    b = convolution(channels, side, pad)
    check(b.kernel("packed"), b.arrays())


def test_a_load_pads_with_zeros_itself():
    for pad, chosen in ((0, 0), (0.0, 0), (-0.0, 1), (2.0, 1)):
        kernel = pad_by_loads(convolution(4, 3, pad).kernel("packed"))
        used = [n for step in kernel.steps for n in vars_of(step)]
        choices = [n for n, step in enumerate(kernel.steps) if isinstance(step, Choose)]
        assert sum(n in used for n in choices) == chosen


def vars_of(step: object) -> list[int]:
    return [n for n in (getattr(step, "lhs", None), getattr(step, "rhs", None)) if n is not None]
