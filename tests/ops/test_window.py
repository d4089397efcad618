"""Windows: the specification's examples, padding, long windows, selection, rules and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.example import Example, binary_region
from tests.ops.program import region, run, scalar
from weft.errors import WeftError
from weft.ir.module import Region
from weft.ir.op import Body, infer, rule
from weft.ir.types import BOOL, F32, I32, DType, tensor
from weft.ir.work import Work
from weft.ops.elementwise.pointwise import Add, Compare, Maximum
from weft.ops.window import ReduceWindow, SelectAndScatter, WindowDims, make_window, pad


def test_the_specifications_example_of_reduce_window():
    op = ReduceWindow((2, 1), (tensor(2, 2, dtype=I32),), (4, 1), (2, 1), (3, 1), ((2, 1), (0, 0)))
    array = np.arange(1, 7, dtype=np.int32).reshape(3, 2)
    (made,) = run(Example(op, (array, np.int32(0)), (binary_region(Add(), "i32"),)))
    np.testing.assert_array_equal(made, [[0, 0], [3, 4]])


@pytest.mark.parametrize("length", [5, 64, 100, 1000])
def test_running_sums_by_a_window_as_long_as_the_array(length: int):
    array = np.arange(length, dtype=np.int32)
    out = (tensor(length, dtype=I32),)
    op = ReduceWindow((length,), out, padding=((length - 1, 0),))
    (made,) = run(Example(op, (array, np.int32(0)), (binary_region(Add(), "i32"),)))
    np.testing.assert_array_equal(made, np.cumsum(array))


@pytest.mark.parametrize("sizes", [(2, 3), (9, 10)])
def test_short_and_long_windows_fold_in_one_order(sizes: tuple[int, int]):
    """A fold that keeps its right argument gives the last element a window sees."""
    types = (scalar(I32),) * 2
    last = region(types, results=(1,))
    array = np.arange(400, dtype=np.int32).reshape(20, 20)
    window = make_window("window", sizes, (2, 1), None, None, (1, 2))
    shape = window.shape("window", array.shape)
    op = ReduceWindow(sizes, (tensor(*shape, dtype=I32),), (2, 1), None, (1, 2))
    (made,) = run(Example(op, (array, np.int32(-1)), (last,)))
    row, column = sizes[0] - 1, 2 * (sizes[1] - 1)
    expected = array[row::2, column:][: made.shape[0], : made.shape[1]]
    np.testing.assert_array_equal(made, expected)


@given(
    st.integers(0, 7), st.integers(1, 4), st.integers(1, 4), st.tuples(*[st.integers(-3, 3)] * 2),
    st.integers(1, 3), st.integers(1, 3),
)  # fmt: skip
def test_a_window_has_the_places_where_it_fits(
    size: int, seen: int, stride: int, padding: tuple[int, int], apart: int, dilation: int
):
    window = WindowDims((seen,), (stride,), (padding,), (apart,), (dilation,))
    length = len(range(size)[:1]) + apart * len(range(size)[1:]) + sum(padding)
    assert window.padded_size(0, size) == length
    starts = range(0, max(0, length), stride)
    fits = [s for s in starts if s + dilation * (seen - 1) < length]
    assert window.count(0, size) == len(fits)
    assert window.is_trivial(0) == ((seen, stride, padding) == (1, 1, (0, 0)))


@pytest.mark.parametrize(
    ("seen", "apart", "padding", "role", "needs_offset"),
    [
        (1, 1, (0, 0), "pass", False),
        (1, 3, (0, 0), "pass", True),  # as Shardy has it; pieces of it need help
        (2, 1, (0, 1), "permutation", False),
        (1, 1, (1, 0), "permutation", False),
    ],
)
def test_a_plain_window_over_spread_elements(
    seen: int, apart: int, padding: tuple[int, int], role: str, needs_offset: bool
):
    window = make_window("window", (seen,), None, (padding,), (apart,))
    out = tensor(*window.shape("window", (8,)))
    op = ReduceWindow((seen,), (out,), None, (apart,), None, (padding,))
    body = binary_region(Maximum(), "f32").body
    (factor,) = rule(op, (tensor(8), tensor()), (body,)).factors
    assert (factor.role, factor.needs_offset) == (role, needs_offset)


def test_padding_holds_the_initial_value_and_may_be_negative():
    plain = WindowDims((1,), (1,), ((-1, 2),), (1,), (1,))
    array = np.array([1, 2, 3])
    np.testing.assert_array_equal(pad(array, np.array(9), plain), [2, 3, 9, 9])
    spread = WindowDims((1,), (1,), ((1, -2),), (3,), (1,))
    np.testing.assert_array_equal(pad(array, np.array(9), spread), [9, 1, 9, 9, 2, 9])
    gone = WindowDims((1,), (1,), ((-5, 4),), (1,), (1,))
    np.testing.assert_array_equal(pad(array, np.array(9), gone), [9, 9])
    nothing = WindowDims((1,), (1,), ((-5, 0),), (1,), (1,))
    assert pad(array, np.array(9), nothing).shape == (0,)


def test_windows_that_fit_nowhere():
    op = ReduceWindow((5,), (tensor(0),))
    types = (tensor(3), tensor())
    body = binary_region(Maximum(), "f32")
    assert infer(op, types, (body.body,)) == (tensor(0),)
    (made,) = run(Example(op, (np.zeros(3, np.float32), np.float32(0)), (body,)))
    assert made.shape == (0,)


def select(direction: str, dtype: DType) -> Region:
    return region((scalar(dtype),) * 2, (Compare(direction), (0, 1)), results=(2,))


def test_the_specifications_example_of_select_and_scatter():
    operand = np.array([[1, 5], [2, 5], [3, 6], [4, 4]], np.int32)
    source = np.array([[5, 6], [7, 8]], np.int32)
    op = SelectAndScatter((3, 1), tensor(4, 2, dtype=I32), (2, 1), ((0, 1), (0, 0)))
    regions = (select("GE", I32), binary_region(Add(), "i32"))
    (made,) = run(Example(op, (operand, source, np.int32(0)), regions))
    np.testing.assert_array_equal(made, [[0, 0], [0, 0], [5, 14], [7, 0]])


def test_selection_takes_the_first_of_equals_and_never_the_padding():
    op = SelectAndScatter((3,), tensor(3), None, ((1, 1),))
    regions = (select("GE", F32), binary_region(Add(), "f32"))
    operand = np.array([-1, -1, -1], np.float32)
    source = np.array([1, 10, 100], np.float32)
    (made,) = run(Example(op, (operand, source, np.float32(5)), regions))
    np.testing.assert_array_equal(made, [16, 105, 5])


def test_rules():
    body = binary_region(Add(), "f32").body
    window = ReduceWindow(
        (1, 3, 1), (tensor(4, 8, 4),), (1, 1, 2), padding=((0, 0), (1, 1), (0, 0))
    )
    found = rule(window, (tensor(4, 8, 8), tensor()), (body,))
    assert str(found) == "([i, j, k], [])->([i, j, k]) {i=4, j=8, k=4} permutation={j, k}"
    op = SelectAndScatter((1, 2), tensor(4, 8), (1, 2))
    bodies = (select("GE", F32).body, body)
    assert str(rule(op, (tensor(4, 8), tensor(4, 4), tensor()), bodies)) == (
        "([i, k], [i, j], [])->([i, k]) {i=4, j=4, k=8} need_replication={j} permutation={k}"
    )


def test_refusals_of_reduce_window():
    body = (binary_region(Add(), "f32").body,)
    full, zero = tensor(4, 8), tensor()

    def refusal(**changes: object) -> str:
        op = ReduceWindow((1, 2), (tensor(4, 7),)).replace(**changes)
        with pytest.raises(WeftError) as caught:
            infer(op, (full, zero), body)
        return caught.value.message.removeprefix("stablehlo.reduce_window: ")

    assert refusal(window_dimensions=(2,)) == "a window of 1 dims over tensor<4x8xf32>"
    assert refusal(window_dimensions=(0, 2)) == "sizes of the window are [0, 2]"
    assert refusal(window_strides=(1, 0)) == "strides of the window are [1, 0]"
    assert refusal(base_dilations=(1,)) == "1 base_dilations for a window of 2 dims"
    assert refusal(window_dilations=(1, -1)) == "window_dilations of the window are [1, -1]"
    assert refusal(padding=((0, 0),)) == "1 padding for a window of 2 dims"
    assert refusal(outs=(tensor(4, 8),)) == (
        "the results are [tensor<4x8xf32>], but [tensor<4x7xf32>] follow from the operands"
    )


def test_refusals_of_select_and_scatter():
    good = (select("GE", F32).body, binary_region(Add(), "f32").body)
    full, places, zero = tensor(4, 8), tensor(4, 4), tensor()

    def refusal(*types: object, bodies: tuple[Body, ...] = good, **changes: object) -> str:
        op = SelectAndScatter((1, 2), tensor(4, 8), (1, 2)).replace(**changes)
        with pytest.raises(WeftError) as caught:
            infer(op, types or (full, places, zero), bodies)
        return caught.value.message.removeprefix("stablehlo.select_and_scatter: ")

    assert refusal(full, full, zero) == (
        "operand 1 is tensor<4x8xf32>, but the window has [4, 4] places"
    )
    assert refusal(full, tensor(4, 4, dtype="f64"), zero).startswith("operand 0 is tensor<4x8xf32>")
    assert refusal(full, places, tensor(1)) == "operand 2 is tensor<1xf32>"
    assert refusal(bodies=good[::-1]).startswith("the region that selects takes")
    broken = Body(good[1].args, (tensor(dtype=BOOL),))
    assert refusal(bodies=(good[0], broken)).startswith("the region that adds takes")
    assert refusal(out=tensor(4, 7)).startswith("the results are [tensor<4x7xf32>]")


def test_the_work_of_select_and_scatter():
    """A flop for each region, where nothing tells what it does."""
    op = SelectAndScatter((3, 1), tensor(4, 2), (2, 1), ((0, 1), (0, 0)))
    types = (tensor(4, 2), tensor(2, 2), tensor())
    flop, more = Work(flops=1), Work(flops=5)
    usual = op.work(types, (tensor(4, 2),))
    assert usual == op.work(types, (tensor(4, 2),), (flop, flop))
    select = op.work(types, (tensor(4, 2),), (more, flop)).flops - usual.flops
    scatter = op.work(types, (tensor(4, 2),), (flop, more)).flops - usual.flops
    assert select > scatter == 4 * 4  # one combination for each of 4 places
