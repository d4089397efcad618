"""The harness itself: it accepts a right local program and finds each kind of wrong one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.partition.differential import Wrong, check
from tests.partition.split import assembled, scattered
from weft.capture import parse
from weft.mesh import Mesh, parse_sharding

GLOBAL = """sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<6x3xf32>) -> tensor<3xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<6x3xf32>, tensor<f32>) -> tensor<3xf32>
  return %0 : tensor<3xf32>
}
"""
GROUPS = (
    '#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>'
)
LOCAL = """sdy.mesh @mesh = <["x"=4]>
func.func @main(%a: tensor<2x3xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>,
    weft.global = tensor<6x3xf32>}) -> (tensor<3xf32> {weft.global = tensor<3xf32>,
    weft.sharding = #sdy.sharding<@mesh, [{}]>}) {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  MASK
  %0 = stablehlo.reduce(%m init: %z) applies stablehlo.add across dimensions = [0]
    : (tensor<2x3xf32>, tensor<f32>) -> tensor<3xf32>
  %1 = "stablehlo.all_reduce"(%0) <{replica_groups = GROUPS,
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
  ^bb0(%b: tensor<f32>, %c: tensor<f32>):
    %d = stablehlo.add %b, %c : tensor<f32>
    stablehlo.return %d : tensor<f32>
  }) : (tensor<3xf32>) -> tensor<3xf32>
  return %1 : tensor<3xf32>
}
"""
MASK = """%p = stablehlo.partition_id : tensor<ui32>
  %last = stablehlo.constant dense<3> : tensor<ui32>
  %real = stablehlo.compare LT, %p, %last : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
  %zeros = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
  %m = stablehlo.select %real, %a, %zeros : tensor<i1>, tensor<2x3xf32>"""


def local(mask: str = MASK, groups: str = GROUPS) -> str:
    return LOCAL.replace("MASK", mask).replace("GROUPS", groups)


def test_a_right_program():
    found = check(parse(GLOBAL), local=parse(local()))
    assert found.stacked[0].shape == (4, 2, 3)
    assert np.isnan(found.stacked[0][3]).all()  # 6 rows make 3 pieces of 2, and one of padding


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        (local("%m = stablehlo.negate %a : tensor<2x3xf32>"), "numbers"),
        (local("%m = stablehlo.abs %a : tensor<2x3xf32>"), "numbers"),  # reads padding
        (local(groups="dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>"), "groups"),
        (local(groups="dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>"), "groups"),
        (local().replace("tensor<6x3xf32>", "tensor<7x3xf32>"), "ends"),
        (local().replace("return %1", "return %0"), "copies"),
    ],
)
def test_a_wrong_program(text: str, stage: str):
    with pytest.raises(Wrong) as found:
        check(parse(GLOBAL), local=parse(text))
    assert found.value.stage == stage


@pytest.mark.parametrize(
    "sharding",
    [
        '<@mesh, [{"x"}, {"y"}]>',
        '<@mesh, [{"y", "x"}, {}]>',
        '<@mesh, [{}, {"x":(2)2, "y"}]>',
        '<@mesh, [{"y"}, {}], unreduced={"x"}>',
    ],
)
def test_pieces_make_the_whole(sharding: str):
    mesh = Mesh((("x", 4), ("y", 3)), device_ids=range(11, -1, -1))
    array = np.arange(35, dtype=np.int32).reshape(5, 7)
    split = parse_sharding(sharding)
    np.testing.assert_array_equal(
        assembled(scattered(array, split, mesh), array.shape, split, mesh), array
    )
