"""Random bits, which must be XLA's to the bit, and random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.oracles import xla
from weft.errors import WeftError
from weft.ir.dense import Dense
from weft.ir.op import Op, infer, rule
from weft.ir.types import DTYPES, UI64, Array, TensorType, tensor
from weft.ops.random import Rng, RngBitGenerator

SHAPES = ((), (1,), (2,), (3,), (8,), (3, 4), (4, 3), (5, 3, 7), (3, 5), (0,), (0, 3))
SMALL_COUNTER = (0x123456789ABCDEF0, 7)
LAST_COUNTER = (3, 2**64 - 2)  # the next blocks carry


def xla_bits(algorithm: str, state: Array, out: TensorType) -> list[Array]:
    """What XLA gives, the bits as unsigned integers."""
    held = TensorType((state.size,), UI64)
    text = f"""func.func @main() -> ({held}, {out}) {{
      %0 = stablehlo.constant {Dense(state).text}
      %1:2 = stablehlo.rng_bit_generator %0, algorithm = {algorithm} : ({held}) -> ({held}, {out})
      return %1#0, %1#1 : {held}, {out}
    }}"""
    return xla.evaluated(text)


@pytest.mark.parametrize("name", ["ui8", "ui16", "ui32", "ui64"])
@pytest.mark.parametrize(
    ("algorithm", "state"),
    [
        ("THREE_FRY", SMALL_COUNTER),
        ("THREE_FRY", LAST_COUNTER),
        ("PHILOX", SMALL_COUNTER),
        ("PHILOX", LAST_COUNTER),
        ("PHILOX", (*LAST_COUNTER, 5)),
        ("PHILOX", (*LAST_COUNTER, 2**64 - 1)),
        ("DEFAULT", (*SMALL_COUNTER, 1)),
    ],
)
def test_bits_are_those_of_xla(algorithm: str, state: tuple[int, ...], name: str):
    held = np.array(state, np.uint64)
    for shape in SHAPES:
        out = tensor(*shape, dtype=name)
        op = RngBitGenerator(algorithm, (tensor(held.size, dtype=UI64), out))
        theirs = xla_bits(algorithm, held, out)
        for ours, expected in zip(op.reference(held), theirs, strict=True):
            np.testing.assert_array_equal(ours, expected, f"{shape}")


@pytest.mark.parametrize("name", ["i8", "i32", "i64", "ui4", "i4", "bf16", "f32", "f64", "f8E5M2"])
def test_other_types_hold_the_same_bits(name: str):
    dtype = DTYPES[name]
    unsigned = DTYPES[f"ui{dtype.bits}"]
    state = np.array(SMALL_COUNTER, np.uint64)
    made, plain = (
        RngBitGenerator("PHILOX", (tensor(2, dtype=UI64), tensor(16, dtype=d))).reference(state)[1]
        for d in (dtype, unsigned)
    )
    assert made.dtype == dtype.numpy
    if dtype.bits < 8:
        np.testing.assert_array_equal(made.astype(np.int64) % 16, plain.astype(np.int64))
    else:
        np.testing.assert_array_equal(made.view(unsigned.numpy), plain)


def test_rule_of_bits():
    op = RngBitGenerator("PHILOX", (tensor(2, dtype=UI64), tensor(3, 4, dtype="ui32")))
    assert str(rule(op, (tensor(2, dtype=UI64),))) == (
        "([i])->([i], [j, k]) {i=2, j=3, k=4} need_replication={i} blocked_propagation={i}"
    )


def numbers(op: Rng, low: object, high: object) -> Array:
    held = op.out.dtype.numpy
    return op.reference(np.array(low, held), np.array(high, held), np.array(op.out.sizes))


@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "f8E5M2", "i32", "ui8", "i64", "ui64"])
def test_uniform_numbers_are_in_their_interval(name: str):
    made = numbers(Rng("UNIFORM", tensor(500, dtype=name)), 2, 4)
    wide = made.astype(np.float64)
    assert made.dtype == DTYPES[name].numpy
    assert (wide >= 2).all() and (wide < 4).all() and len(set(wide)) > 1


def test_integers_of_a_whole_type():
    made = numbers(Rng("UNIFORM", tensor(1000, dtype="i64")), -(2**63), 2**63 - 1)
    assert made.min() < -(2**62) and made.max() > 2**62
    nothing = numbers(Rng("UNIFORM", tensor(3, dtype="i1")), False, True)
    np.testing.assert_array_equal(nothing, [False] * 3)


def test_normal_numbers():
    made = numbers(Rng("NORMAL", tensor(20000)), 10, 2)
    assert abs(made.mean() - 10) < 0.1 and abs(made.std() - 2) < 0.1


def test_each_call_draws_other_numbers():
    op = Rng("UNIFORM", tensor(8))
    assert not op.pure
    assert (numbers(op, 0, 1) != numbers(op, 0, 1)).any()


def test_the_shape_is_checked_when_the_program_runs():
    op = Rng("UNIFORM", tensor(3))
    zero = np.zeros((), np.float32)
    with pytest.raises(WeftError, match=r"the shape is \[4\], but the result is tensor<3xf32>"):
        op.reference(zero, zero, np.array([4]))


def test_refusals():
    def refusal(op: Op, *types: object) -> str:
        with pytest.raises(WeftError) as caught:
            infer(op, types)
        return caught.value.message.removeprefix(f"{op.name}: ")

    sizes = tensor(1, dtype="i64")
    assert refusal(Rng("NORMAL", tensor(3, dtype="i32")), *[tensor(dtype="i32")] * 2, sizes) == (
        "operand 0 is tensor<i32>"
    )
    assert refusal(Rng("UNIFORM", tensor(3)), tensor(), tensor(dtype="f64"), sizes) == (
        "operand 0 is tensor<f32>, operand 1 is tensor<f64>"
    )
    assert refusal(Rng("UNIFORM", tensor(3, 4)), tensor(), tensor(), sizes) == (
        "operand 2 is tensor<1xi64>, but the result is tensor<3x4xf32>"
    )
    assert refusal(Rng("UNIFORM", tensor(3, dtype="f64")), tensor(), tensor(), sizes) == (
        "the result is tensor<3xf64>, but operand 0 is tensor<f32>"
    )
    three = tensor(3, dtype=UI64)
    bits = RngBitGenerator("THREE_FRY", (three, tensor(4, dtype="ui32")))
    assert refusal(bits, three) == "operand 0 is tensor<3xui64>"
    other = RngBitGenerator("PHILOX", (tensor(2, dtype=UI64), tensor(4, dtype="ui32")))
    assert refusal(other, three).startswith("the results are [tensor<2xui64>")
