"""Groups of devices along axes and parts of axes, against a statement in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from weft.capture import parse
from weft.errors import WeftError
from weft.mesh import Axis, Mesh, MeshAxes, parse_axis, parse_mesh, parse_mesh_axes
from weft.mesh.groups import cross_partition, cross_replica, cross_replica_and_partition

Lists = tuple[tuple[int, ...], ...]


def stated(mesh: Mesh, axes: tuple[Axis, ...]) -> set[tuple[int, ...]]:
    """Devices meet if they agree in everything but their position along these axes."""
    sizes = dict(mesh.axes)
    groups: dict[tuple[object, ...], list[tuple[tuple[int, ...], int]]] = {}
    for place in np.ndindex(*sizes.values()):
        coordinates = dict(zip(sizes, place, strict=True))
        along, rest = [], dict(coordinates)
        for axis in axes:
            after = sizes[axis.name] // (axis.before * (axis.size or sizes[axis.name]))
            size = axis.size or sizes[axis.name]
            coordinate = coordinates[axis.name] // after % size
            along.append(coordinate)
            rest[axis.name] -= coordinate * after
        device = int(mesh.devices()[place])
        groups.setdefault(tuple(rest.items()), []).append((tuple(along), device))
    return {tuple(device for _, device in sorted(group)) for group in groups.values()}


@composite
def meshes(draw: DrawFn) -> Mesh:
    names = draw(st.sampled_from((("x",), ("x", "y"), ("a", "b", "c"))))
    axes = tuple((name, draw(st.sampled_from((1, 2, 3, 4, 8)))) for name in names)
    count = math.prod(size for _, size in axes)
    order = draw(st.permutations(range(count))) if draw(st.booleans()) else None
    return Mesh(axes, None if order is None else tuple(order))


@composite
def parts(draw: DrawFn, name: str, size: int) -> list[Axis]:
    """Parts of an axis that do not overlap, or the whole."""
    if draw(st.booleans()):
        return [Axis(name)]
    found, before = [], 1
    while before < size:
        step = draw(st.sampled_from([n for n in range(2, size + 1) if size % (before * n) == 0]))
        if draw(st.booleans()):
            found.append(Axis(name, before, step))
        before *= step
    return found


@composite
def groupings(draw: DrawFn) -> tuple[Mesh, tuple[Axis, ...]]:
    mesh = draw(meshes())
    chosen = draw(st.lists(st.sampled_from(mesh.axes), unique=True, min_size=1))
    axes = [part for name, size in chosen for part in draw(parts(name, size))]
    return mesh, tuple(draw(st.permutations(axes)))


@given(groupings())
def test_groups_are_what_they_say(grouping: tuple[Mesh, tuple[Axis, ...]]):
    mesh, axes = grouping
    groups = mesh.groups(axes)
    assert set(groups) == stated(mesh, axes)
    assert sorted(d for group in groups for d in group) == list(range(mesh.size))


@given(groupings())
def test_groups_are_written_as_mlir_reads_them(grouping: tuple[Mesh, tuple[Axis, ...]]):
    mesh, axes = grouping
    for held in (MeshAxes(mesh, axes), MeshAxes("mesh", axes)):
        assert parse_mesh_axes(str(held)) == held
    assert parse_mesh(f"#sdy.mesh{mesh}") == mesh


@given(groupings())
def test_mlir_accepts_the_groups(grouping: tuple[Mesh, tuple[Axis, ...]]):
    mesh, axes = grouping
    if not axes:
        return
    text = f"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
  %0 = "stablehlo.all_reduce"(%x) <{{replica_groups = {MeshAxes(mesh, axes)}}}> ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }}) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}}
"""
    module = parse(text)
    node = next(module.nodes())
    assert node.op.replica_groups == MeshAxes(mesh, axes)  # type: ignore[attr-defined]
    assert parse(module.text()).text() == module.text()


def test_known_groups():
    mesh = Mesh((("x", 2), ("y", 4)))
    assert mesh.groups((Axis("x"),)) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert mesh.groups((Axis("y"),)) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert mesh.groups((Axis("y", 1, 2),)) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert mesh.groups((Axis("y", 2, 2),)) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert mesh.groups((Axis("y"), Axis("x")))[0] == (0, 4, 1, 5, 2, 6, 3, 7)
    assert Mesh((("x", 2),), (1, 0)).groups((Axis("x"),)) == ((1, 0),)


def test_unknown_axes_are_refused():
    mesh = Mesh((("x", 2),))
    with pytest.raises(WeftError, match='no axis "z"') as caught:
        mesh.groups((Axis("z"),))
    assert caught.value.help == "known: x"
    with pytest.raises(WeftError, match="is not an axis"):
        parse_axis("z z")
    with pytest.raises(WeftError, match="no mesh 'm'"):
        MeshAxes("m", (Axis("x"),)).lists({"n": mesh})
    with pytest.raises(WeftError, match="too large"):
        Mesh((("x", 1 << 40),)).devices()


@pytest.mark.parametrize("text", ['"x"', '"x":(2)4'])
def test_axes_are_read_back(text: str):
    assert str(parse_axis(text)) == text


def test_replicas_and_partitions_meet_as_the_specification_says():
    # Two replicas of two partitions; a device is replica * 2 + partition.
    assert cross_replica(((0, 1),), 2, 2) == ((0, 2), (1, 3))
    assert cross_partition(((0, 1),), 2, 2) == ((0, 1), (2, 3))
    assert cross_replica_and_partition(((0,), (1,)), 2, 2) == ((0, 1), (2, 3))
    assert cross_replica_and_partition(((0, 1),), 2, 2) == ((0, 2, 1, 3),)
