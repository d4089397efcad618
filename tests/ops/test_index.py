"""Known values, corner cases and refusals of gather and its kin."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import WeftError
from weft.ir.op import infer
from weft.ir.types import tensor
from weft.ops.index import Gather, GatherDims, TorchIndexSelect

ROWS = GatherDims((1,), (0,), (), (), (0,), 1)  # whole rows, by their number


def refusal(op, *types):
    with pytest.raises(WeftError) as caught:
        infer(op, types)
    return caught.value.message


def test_gather_of_the_specification():
    operand = np.arange(1, 25, dtype=np.int32).reshape(3, 4, 2)
    starts = np.array([[[0, 0], [1, 0], [2, 1]], [[0, 1], [1, 1], [0, 9]]])
    dims = GatherDims((2, 3), (0,), (), (), (1, 0), 2)
    out = Gather(dims, (1, 2, 2)).reference(operand, starts)
    assert out.tolist() == [
        [[[1, 2], [3, 4]], [[3, 4], [5, 6]], [[13, 14], [15, 16]]],
        [[[9, 10], [11, 12]], [[11, 12], [13, 14]], [[17, 18], [19, 20]]],
    ]


def test_gather_with_batching_dims_takes_one_row_of_each():
    operand = np.arange(12).reshape(3, 4)
    dims = GatherDims((), (1,), (0,), (0,), (1,), 1)
    out = Gather(dims, (1, 1)).reference(operand, np.array([[1], [3], [0]]))
    assert out.tolist() == [1, 7, 8]


@pytest.mark.parametrize("held", [np.int8, np.uint64, np.int64])
def test_gather_stays_inside(held):
    operand = np.arange(4.0).reshape(4, 1)
    far = np.array([[np.iinfo(held).max], [np.iinfo(held).min]], held)
    assert Gather(ROWS, (1, 1)).reference(operand, far).ravel().tolist() == [3, 0]


def test_gather_without_elements():
    none = np.zeros((0, 1), np.int32)
    assert Gather(ROWS, (1, 3)).reference(np.ones((4, 3)), none).shape == (0, 3)
    assert Gather(ROWS, (1, 0)).reference(np.ones((4, 0)), np.zeros((2, 1), int)).shape == (2, 0)
    with pytest.raises(WeftError, match="reads from an operand without elements"):
        Gather(ROWS, (0, 3)).reference(np.ones((0, 3)), np.zeros((2, 1), int))


@pytest.mark.parametrize(
    ("dims", "sizes", "message"),
    [
        (ROWS, (2, 6), "dim 0 is collapsed or batching, but slice_sizes = (2, 6)"),
        (ROWS, (1, 7), "slice_sizes of dim 1 is 7, but the operand's size is 6"),
        (ROWS, (1,), "slice_sizes = (1,), but tensor<4x6xf32> has 2 dims"),
        (GatherDims((0, 1), (0,), (), (), (0,), 1), (1, 6), "the operand has 2 dims, but 2 window"),
        (GatherDims((1,), (0,), (), (), (0,), 3), (1, 6), "index_vector_dim is 3"),
        (GatherDims((1,), (0,), (), (), (0, 1), 1), (1, 6), "an index vector has 1 elements"),
        (GatherDims((2,), (0,), (), (), (0,), 1), (1, 6), "the window dims holds 2"),
        (GatherDims((1,), (0,), (), (), (2,), 1), (1, 6), "the dims that indices are for holds 2"),
        (GatherDims((1,), (), (0,), (0,), (0,), 1), (1, 6), "repeats a dim: (0, 0)"),
        (GatherDims((1,), (), (0,), (1,), (1,), 1), (1, 6), "and is a batching dim"),
        (GatherDims((1,), (), (0,), (0,), (1,), 1), (1, 6), "sizes differ: operand dim 0 is 4"),
        (GatherDims((1,), (), (0,), (), (1,), 1), (1, 6), "the operand has 1 batching dims"),
        (GatherDims((), (1, 0), (), (), (0,), 1), (1, 1), "are not in ascending order"),
    ],
)
def test_gather_refusals(dims, sizes, message):
    found = refusal(Gather(dims, sizes), tensor(4, 6), tensor(5, 1, dtype="i32"))
    assert found.startswith("stablehlo.gather: ") and message in found


def test_indices_are_integers():
    assert refusal(Gather(ROWS, (1, 6)), tensor(4, 6), tensor(5, 1)) == (
        "stablehlo.gather: operand 1 is tensor<5x1xf32>"
    )


def test_torch_index_select_is_a_take():
    operand = np.arange(24).reshape(2, 3, 4)
    index = np.array([[0, 2], [1, 9]])
    taken = TorchIndexSelect(-1, 0).reference(operand, index)
    assert taken.tolist() == operand[:, :, [[0, 2], [1, 3]]].tolist()  # 9 is moved inside
    rows = TorchIndexSelect(2, 1).reference(operand, index)
    assert rows.tolist() == [operand[0][:, [0, 2]].tolist(), operand[1][:, [1, 3]].tolist()]


def test_torch_index_select_refusals():
    index = tensor(2, dtype="i32")
    assert refusal(TorchIndexSelect(3, 0), tensor(2, 3, 4), index).startswith(
        "stablehlo.torch_index_select: dim is 3"
    )
    assert "batch_dims is 2" in refusal(TorchIndexSelect(1, 2), tensor(2, 3, 4), index)
    assert "the first 1 dims" in refusal(TorchIndexSelect(1, 1), tensor(3, 3, 4), index)
