"""Protocol buffers as PJRT writes them."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from weft.jax.questions.protos import device_numbers, field, fields, packed

numbers = st.integers(1, 2**20)


@given(st.lists(st.tuples(numbers, st.one_of(st.integers(0, 2**63), st.binary(max_size=200)))))
def test_fields_are_read_back(listed):
    assert [*fields(b"".join(field(n, value) for n, value in listed))] == listed


def test_fields_of_fixed_width_are_skipped():
    single, double = bytes([1 << 3 | 5]) + struct.pack("<f", 2.5), bytes([2 << 3 | 1]) + bytes(8)
    assert [*fields(single + double + field(3, 7))] == [(1, single[1:]), (2, bytes(8)), (3, 7)]


def test_devices_of_an_assignment():
    for written in (
        lambda row: field(1, packed(row)),
        lambda row: b"".join(field(1, n) for n in row),
    ):
        columns = [field(3, written(row)) for row in ((0, 200), (1, 300))]
        assert device_numbers(b"".join(columns)) == (0, 1, 200, 300)
