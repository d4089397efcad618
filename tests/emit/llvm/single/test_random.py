"""Random bits are those of the reference, which are XLA's, whatever the shape and the type."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emit.llvm.single.lone_nodes import check_alone
from weft.ir.types import DTYPES, TensorType, type_of
from weft.ops.random import RngBitGenerator

SHAPES = [(), (1,), (7,), (8,), (130,), (4, 33), (3, 34), (33, 5), (3, 4, 40), (0, 3), (5001,)]
NEAR_THE_END = np.array([2**40 + 7, 2**64 - 3], np.uint64)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("algorithm", ["THREE_FRY", "PHILOX", "DEFAULT"])
@pytest.mark.parametrize("dtype", ["ui32", "ui64", "ui8"])
def test_bits(algorithm: str, shape: tuple[int, ...], dtype: str):
    out = TensorType(shape, DTYPES[dtype])
    op = RngBitGenerator(algorithm, (type_of(NEAR_THE_END), out))
    check_alone(op, NEAR_THE_END, sizes=(2,), masks=(1,))


def test_a_counter_of_128_bits_carries():
    state = np.array([5, 2**64 - 3, 9], np.uint64)
    out = TensorType((64,), DTYPES["ui32"])
    check_alone(RngBitGenerator("PHILOX", (type_of(state), out)), state)


@pytest.mark.parametrize("dtype", ["ui4", "i4", "i2", "f4E2M1FN"])
def test_elements_smaller_than_bytes(dtype: str):
    op = RngBitGenerator("PHILOX", (type_of(NEAR_THE_END), TensorType((80,), DTYPES[dtype])))
    check_alone(op, NEAR_THE_END, compare=np.testing.assert_array_equal)
