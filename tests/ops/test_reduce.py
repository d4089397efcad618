"""Reductions and scans: values, order, wider types, combining, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.example import Example, binary_region
from tests.ops.examples.reduce import fold_region
from tests.ops.program import region, run, scalar
from weft.capture import parse
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Region
from weft.ir.op import Body, infer, rule
from weft.ir.types import DTYPES, F32, I32, Array, TensorType, Types, tensor
from weft.ops.combiners import combine_of
from weft.ops.elementwise.pointwise import (
    Add,
    And,
    Compare,
    Maximum,
    Minimum,
    Multiply,
    Or,
    Select,
    Xor,
)
from weft.ops.reduce import Reduce, Scan


def folded(array: Array, dims: tuple[int, ...], init: Array, body: Region, out: Types) -> Array:
    return run(Example(Reduce(dims, out), (array, init), (body,)))[0]


def test_sums_and_products():
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    total = folded(array, (2, 0), np.int32(0), binary_region(Add(), "i32"), (tensor(3, dtype=I32),))
    np.testing.assert_array_equal(total, array.sum((0, 2)))
    small = array[:, :, :1]
    product = folded(
        small, (0,), np.int32(2), binary_region(Multiply(), "i32"), (tensor(3, 1, dtype=I32),)
    )
    np.testing.assert_array_equal(product, 2 * small.prod(0))


def test_nothing_to_fold_is_the_initial_value():
    body = binary_region(Add(), "f32")
    init = np.float32(7)
    empty = folded(np.zeros((2, 0), np.float32), (1,), init, body, (tensor(2),))
    np.testing.assert_array_equal(empty, [7, 7])
    none = folded(np.zeros((0, 2), np.float32), (1,), init, body, (tensor(0),))
    assert none.shape == (0,)
    point = folded(np.array(3, np.float32), (), init, body, (tensor(),))
    assert point == 10


@pytest.mark.parametrize("length", [3, 64, 65, 1000, 1001])
def test_order_is_kept(length: int):
    """Composing affine maps x -> a x + b is associative, but not commutative."""
    types = (scalar(I32),) * 4
    body = region(
        types, (Multiply(), (0, 2)), (Multiply(), (1, 2)), (Add(), (5, 3)), results=(4, 6)
    )
    random = np.random.default_rng(0)
    factors = random.integers(-3, 4, length).astype(np.int32)
    offsets = random.integers(-3, 4, length).astype(np.int32)
    example = Example(
        Reduce((0,), (tensor(dtype=I32),) * 2),
        (factors, offsets, np.int32(1), np.int32(0)),
        (body,),
    )
    a, b = np.int32(1), np.int32(0)
    with np.errstate(over="ignore"):
        for factor, offset in zip(factors, offsets, strict=True):
            a, b = a * factor, b * factor + offset
    assert [int(made) for made in run(example)] == [int(a), int(b)]


def test_argmax_keeps_the_first_of_equals():
    types = (scalar(F32), scalar(I32)) * 2
    body = region(
        types,
        (Compare("GE"), (0, 2)),
        (Select(), (4, 0, 2)),
        (Select(), (4, 1, 3)),
        results=(5, 6),
    )
    values = np.array([[1, 5, 5], [2, 0, 2]], np.float32)
    places = np.broadcast_to(np.arange(3, dtype=np.int32), (2, 3))
    example = Example(
        Reduce((1,), (tensor(2), tensor(2, dtype=I32))),
        (values, places, np.float32(-np.inf), np.int32(0)),
        (body,),
    )
    best, at = run(example)
    np.testing.assert_array_equal(best, [5, 2])
    np.testing.assert_array_equal(at, [1, 0])


def test_a_wider_region_folds_without_loss():
    ones = np.ones(1000).astype(DTYPES["bf16"].numpy)
    zero = np.zeros((), ones.dtype)
    made = folded(ones, (0,), zero, binary_region(Add(), "f32"), (tensor(),))
    assert made == 1000 and made.dtype == np.float32
    small = np.full(4, 100, np.int8)
    total = folded(small, (0,), np.int8(0), binary_region(Add(), "i32"), (tensor(dtype=I32),))
    assert total == 400


def test_nan_is_passed_on():
    body = binary_region(Maximum(), "f32")
    array = np.array([1, np.nan, 3], np.float32)
    assert np.isnan(folded(array, (0,), np.float32(-np.inf), body, (tensor(),)))


@pytest.mark.parametrize(
    ("op", "name", "combine"),
    [
        (Add, "f32", "add"),
        (Multiply, "i8", "mul"),
        (Maximum, "f32", "max"),
        (Minimum, "ui8", "min"),
        (And, "i32", "and"),
        (Or, "i32", "or"),
        (Xor, "i32", "xor"),
        (Add, "i1", "or"),
        (Maximum, "i1", "or"),
        (Multiply, "i1", "and"),
        (Minimum, "i1", "and"),
    ],
)
def test_how_pieces_are_combined(op: type, name: str, combine: str):
    body = binary_region(op(), name).body
    assert combine_of(body) == combine
    out = (tensor(4, dtype=name),)
    found = rule(Reduce((1,), out), (tensor(4, 8, dtype=name), tensor(dtype=name)), (body,))
    assert str(found) == "([i, j], [])->([i]) {i=4, j=8} reduction={j}"
    assert found.factors[1].combine == combine


def test_what_has_no_plain_combination():
    mixed = fold_region([Maximum, Minimum], [F32, F32]).body
    assert combine_of(mixed) is None
    same = fold_region([Add, Add], [F32, I32]).body
    assert combine_of(same) == "add"
    assert combine_of(Body((), (), (None,))) is None


def test_work():
    op = Reduce((1,), (tensor(4),))
    from weft.ir.work import Work

    counted = op.work((tensor(4, 8), tensor()), (tensor(4),), (Work(flops=3, bytes=12),))
    assert (counted.flops, counted.bytes) == (3 * 32, 4 * (32 + 1 + 4))


def test_refusals_of_reduce():
    body = (binary_region(Add(), "f32").body,)

    def refusal(op: Reduce, *types: object, bodies: tuple[Body, ...] = body) -> str:
        with pytest.raises(WeftError) as caught:
            infer(op, types, bodies)
        return caught.value.message.removeprefix("stablehlo.reduce: ")

    op, full, zero = Reduce((1,), (tensor(4),)), tensor(4, 8), tensor()
    assert infer(op, (full, zero), body) == (tensor(4),)
    assert refusal(op, full) == "1 operands"
    assert refusal(op, full, tensor(1)) == "operand 1 is tensor<1xf32>"
    assert refusal(op.replace(dimensions=(2,)), full, zero) == (
        "dimensions holds 2, but the tensor has 2 dims"
    )
    assert refusal(op.replace(dimensions=(1, 1)), full, zero) == "dimensions repeats a dim: (1, 1)"
    assert refusal(Reduce((1,), (tensor(8),)), full, zero) == (
        "the results are [tensor<8xf32>], but [tensor<4xf32>] follow from the operands"
    )
    assert refusal(op, full, tensor(8, 4), zero, zero).startswith("operand 0 is tensor<4x8xf32>")
    assert refusal(op, tensor(4, 8, dtype="i32"), tensor(dtype="i32")).startswith(
        "input 0 is tensor<4x8xi32>, its initial value tensor<i32>"
    )
    assert "but the region gives tensor<f32>" in refusal(op, tensor(4, 8, dtype="f64"), zero)
    vector = (tensor(2),)
    wide = Body(vector * 2, vector)
    assert "but the region gives tensor<2xf32>" in refusal(op, full, zero, bodies=(wide,))
    both = (tensor(),)
    assert refusal(op, full, zero, bodies=(Body(both * 3, both),)).startswith(
        "the region takes 3 values and gives 1"
    )


SCANS = """
func.func @main(%in: tensor<2x3xi32>, %init: tensor<2xi32>) -> (tensor<2x3xi32>, tensor<2xi32>) {{
  %0:2 = chlo.scan(%in) inits(%init) dimension=1 {attributes} {{
  ^bb0(%a: tensor<2xi32>, %b: tensor<2xi32>):
    %1 = stablehlo.add %a, %b : tensor<2xi32>
    stablehlo.return %1, %1 : tensor<2xi32>, tensor<2xi32>
  }} : (tensor<2x3xi32>, tensor<2xi32>) -> (tensor<2x3xi32>, tensor<2xi32>)
  return %0#0, %0#1 : tensor<2x3xi32>, tensor<2xi32>
}}
"""


@pytest.mark.parametrize("is_reverse", [False, True])
def test_scan_gives_running_sums(is_reverse: bool):
    attributes = "attributes {is_reverse = true}" if is_reverse else ""
    module = parse(SCANS.format(attributes=attributes))
    array, init = np.arange(6, dtype=np.int32).reshape(2, 3), np.array([1, 2], np.int32)
    sums, last = evaluate(module, array, init)
    step = -1 if is_reverse else 1
    expected = (np.cumsum(array[:, ::step], 1) + init[:, None])[:, ::step]
    np.testing.assert_array_equal(sums, expected)
    np.testing.assert_array_equal(last, array.sum(1) + init)
    assert parse(module.text()).text() == module.text()


def test_scan_without_inputs_needs_a_length():
    piece: TensorType = tensor(2, dtype=I32)
    body = region((piece,), (Add(), (0, 0)), results=(0, 1))
    op = Scan(0, (0, 1), (1, 1), (tensor(3, 2, dtype=I32), piece), 3)
    made, last = run(Example(op, (np.array([1, 2], np.int32),), (body,)))
    np.testing.assert_array_equal(made, [[1, 2], [2, 4], [4, 8]])
    np.testing.assert_array_equal(last, [8, 16])


def test_scan_of_nothing():
    piece = tensor(2)
    body = region((piece, piece), (Add(), (0, 1)), results=(2, 2))
    op = Scan(0, (1, 1), (1, 1), (tensor(0, 2), piece))
    init = np.array([1, 2], np.float32)
    made, last = run(Example(op, (np.zeros((0, 2), np.float32), init), (body,)))
    assert made.shape == (0, 2)
    np.testing.assert_array_equal(last, init)


def test_refusals_of_scan():
    piece = tensor(2)
    body = region((piece, piece), (Add(), (0, 1)), results=(2, 2)).body
    op = Scan(0, (1, 1), (1, 1), (tensor(3, 2), piece))

    def refusal(*types: object, body: Body = body, **changes: object) -> str:
        with pytest.raises(WeftError) as caught:
            infer(op.replace(**changes), types, (body,))
        return caught.value.message.removeprefix("chlo.scan: ")

    assert infer(op, (tensor(3, 2), piece), (body,)) == (tensor(3, 2), piece)
    assert refusal(tensor(3, 2), piece, dimension=2) == (
        "dimension holds 2, but the tensor has 2 dims"
    )
    assert refusal(tensor(3, 2), piece, dimension=-1) == "dimension is -1"
    assert refusal(tensor(3, 2), piece, scan_dim_size=4) == "operand 0 dim 0 is 3, others are 4"
    assert refusal(tensor(3, 2), piece, operandSegmentSizes=(2, 1)) == (
        "2 operands in groups of [2, 1]"
    )
    assert refusal(tensor(3, 4), piece).startswith("the region takes [tensor<2xf32>")
    carries = Body(body.args, (piece, tensor(3)))
    assert refusal(tensor(3, 2), piece, body=carries) == (
        "the region gives the carries [tensor<3xf32>]"
    )
    assert refusal(tensor(3, 2), piece, outs=(tensor(4, 2), piece)).startswith("the results are")
