"""Lists of axes cut at each other's ends: as sets of bits, on a mesh of powers of two."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.mesh import Axis, Mesh
from weft.mesh.algebra import merged_axes, size_of
from weft.mesh.cuts import as_set, cut_by, disjoint, inside, without

MESH = Mesh(a=32, b=8)


@st.composite
def axes(draw: st.DrawFn) -> list[Axis]:
    """Parts of axes that do not overlap, in any order; some of size 1."""
    made = []
    for name, bits in (("a", 5), ("b", 3)):
        ends = sorted(draw(st.lists(st.integers(0, bits), min_size=2, max_size=4)))
        for begin, end in zip(ends[::2], ends[1::2], strict=False):
            whole = end - begin == bits
            made.append(Axis(name) if whole else Axis(name, 1 << begin, 1 << end - begin))
    return draw(st.permutations(made))


def bits_of(axis: Axis) -> list[tuple[str, int]]:
    """The bits of a device's place that an axis stands for, the outer ones first."""
    begin, count = int(math.log2(axis.before)), int(math.log2(size_of(axis, MESH)))
    return [(axis.name, n) for n in range(begin, begin + count)]


def in_order(listed: tuple[Axis, ...] | list[Axis]) -> list[tuple[str, int]]:
    return [bit for axis in listed for bit in bits_of(axis)]


@settings(max_examples=100)
@given(axes(), axes())
def test_pieces_lie_inside_or_outside(listed, others):
    others = [axis for axis in others if size_of(axis, MESH) > 1]
    made = cut_by(listed, others, MESH)
    assert in_order(made) == in_order(listed)
    held = {*in_order(others)}
    for piece in made:
        assert size_of(piece, MESH) > 1
        met = {*bits_of(piece)} & held
        assert met in (set(), {*bits_of(piece)})
        assert disjoint([piece], others) == (not met)
        assert inside(piece, others) == bool(met)


@settings(max_examples=100)
@given(axes(), axes())
def test_what_is_left_keeps_its_order(listed, others):
    others = [axis for axis in others if size_of(axis, MESH) > 1]
    left = without(listed, others, MESH)
    given, gone = in_order(listed), in_order(others)
    if left is not None:
        assert in_order(left) == [bit for bit in given if bit not in gone]
    else:
        assert not {*gone} <= {*given}


@settings(max_examples=100)
@given(axes())
def test_parts_of_one_axis_are_joined(listed):
    joined = merged_axes(listed, MESH)
    assert in_order(joined) == in_order(listed)
    for one, other in itertools.pairwise(joined):
        ends = one.before * size_of(one, MESH)
        assert one.name != other.name or ends != other.before
    assert in_order(as_set(listed, MESH)) == sorted(in_order(listed))
