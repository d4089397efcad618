"""Local programs: devices in any number and order, memory, refusals, and what is kept."""

from __future__ import annotations

import numpy as np
import pytest

from tests.run.stacks import assert_same, lockstep
from tests.tolerance import assert_close
from weft.array.stacked import Stacked, one_for_all, split, stack
from weft.capture import parse
from weft.emit.numpy.table import kinds
from weft.errors import Unsupported, WeftError
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, Region, Value, apply
from weft.ir.types import tensor
from weft.mesh import Axis, Mesh, MeshAxes, P
from weft.ops.combiners import SHORT_NAMES, combiner
from weft.ops.contract import DotDims, DotGeneral
from weft.ops.distributed.collective import AllReduce
from weft.ops.distributed.local import CHANNEL, VariadicReduceScatter
from weft.ops.distributed.sharding import ShardyAllSlice
from weft.pipeline import local_program

SUM = """
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>"""


def reduced(groups: str, more: str = "use_global_device_ids", channel: int = 1) -> str:
    return f"""func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {{
    %0 = "stablehlo.all_reduce"(%x) <{{replica_groups = {groups},
      channel_handle = #stablehlo.channel_handle<handle = {channel}, type = 1>
      {"," if more else ""} {more}}}> ({{{SUM}
    }}) : (tensor<3xf32>) -> tensor<3xf32>
    return %0 : tensor<3xf32>
  }}"""


def numbers(count: int) -> np.ndarray:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


# Who meets


@pytest.mark.parametrize(
    "groups",
    [
        "dense<[[0, 1, 2, 3, 4, 5]]> : tensor<1x6xi64>",
        "dense<[[0, 1, 2], [3, 4, 5]]> : tensor<2x3xi64>",
        "dense<[[0, 3], [1, 4], [2, 5]]> : tensor<3x2xi64>",
        "dense<[[0, 2, 4], [1, 3, 5]]> : tensor<2x3xi64>",
        "dense<[[5, 4, 3, 2, 1, 0]]> : tensor<1x6xi64>",
        "dense<[[0, 5], [1, 4], [2, 3]]> : tensor<3x2xi64>",
        "dense<[[0, 1, 2, 3], [4, 5, -1, -1]]> : tensor<2x4xi64>",
        "dense<[[0], [1], [2], [3], [4], [5]]> : tensor<6x1xi64>",
    ],
)
def test_groups_may_be_any_lists(groups):
    assert_same(parse(reduced(groups)), numbers(6), length=6)


@pytest.mark.parametrize("more, channel", [("use_global_device_ids", 1), ("", 1), ("", 0)])
def test_replicas_and_partitions(more, channel):
    groups = "dense<[[0, 1]]> : tensor<1x2xi64>" if not more else "dense<[[0, 3], [1, 2], [4, 5]]>"
    groups += "" if not more else " : tensor<3x2xi64>"
    module = parse(reduced(groups, more, channel))
    expected = evaluate(module, numbers(6), devices=(2, 3))
    program = local_program(module, devices=(2, 3))
    (made,) = program(stack(numbers(6), program.sub_axes))
    assert_close(made.pieces(), expected[0], 6)


def test_a_device_in_no_group_is_an_error():
    module = parse(reduced("dense<[[0, 1]]> : tensor<1x2xi64>"))
    with pytest.raises(WeftError, match="device 2 is in no group"):
        lockstep(module, numbers(3), devices=3)


def test_devices_in_the_order_of_the_mesh():
    axis = '#stablehlo.axis_ref<name = "x">'
    main = reduced(f"#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [{axis}]>")
    mesh = 'sdy.mesh @mesh = <["x"=2, "y"=2], device_ids=[2, 0, 3, 1]>'
    module = parse(f"module {{ {mesh} {main} }}")
    program = local_program(module)
    order = program.world.devices()
    (made,) = program(stack(numbers(4)[order], program.sub_axes))
    assert made.data.shape == (1, 2, 3)
    expected = evaluate(module, numbers(4), devices=4)[0]
    assert np.array_equal(made.pieces(), expected[order])


def test_parts_of_axes_that_cross_are_met_group_by_group():
    """The halves and the thirds of one axis have no sub-axes in common."""
    part = '#stablehlo.axis_ref<name = "x", sub_axis_info = (1){}>'
    groups = "#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [{}]>"
    body = "%x0 = stablehlo.negate %x : tensor<3xf32>"
    for n, size in enumerate((2, 3)):
        lists = groups.format(part.format(size))
        body += f"""
    %x{n + 1} = "stablehlo.all_reduce"(%x{n}) <{{replica_groups = {lists},
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
      use_global_device_ids}}> ({{{SUM}
    }}) : (tensor<3xf32>) -> tensor<3xf32>"""
    text = f"""module {{
  sdy.mesh @mesh = <["x"=6]>
  func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {{
    {body}
    return %x2 : tensor<3xf32>
  }}
}}"""
    assert_same(parse(text), numbers(6), length=6)


def test_a_split_that_crosses_the_sub_axes_in_use():
    mesh = Mesh(x=6)
    whole = np.arange(12.0)
    halves = parse(reduced("dense<[[0, 1, 2], [3, 4, 5]]> : tensor<2x3xi64>"))
    sub_axes = local_program(halves, devices=6).sub_axes
    assert sub_axes.sizes == (2, 3)
    sharding = P("x:(1)3").sharding(1, mesh)
    made = split(whole, sharding, mesh, sub_axes)
    assert [made.piece(n)[0] for n in range(6)] == [0, 0, 4, 4, 8, 8]


# Many devices


@pytest.mark.parametrize("count", [1024, 4096])
def test_thousands_of_devices(count):
    text = f"""module {{
  sdy.mesh @mesh = <["x"={count}]>
  func.func @main(%x: tensor<2xf32> {{weft.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}})
      -> (tensor<2xf32> {{weft.sharding = #sdy.sharding<@mesh, [{{"x"}}]>}}, tensor<{count}xf32>) {{
    %sum = "stablehlo.all_reduce"(%x) <{{
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
      replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh,
        axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}}> ({{{SUM}
    }}) : (tensor<2xf32>) -> tensor<2xf32>
    %y = stablehlo.subtract %x, %sum : tensor<2xf32>
    %all = "stablehlo.all_gather"(%y) <{{all_gather_dim = 0 : i64,
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
      replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh,
        axes = [#stablehlo.axis_ref<name = "x">]>, use_global_device_ids}}>
      : (tensor<2xf32>) -> tensor<{2 * count}xf32>
    %half = stablehlo.slice %all [0:{count}] : (tensor<{2 * count}xf32>) -> tensor<{count}xf32>
    return %y, %half : tensor<2xf32>, tensor<{count}xf32>
  }}
}}"""
    program = local_program(parse(text))
    x = np.ones(2 * count, np.float32)
    y, half = program(split(x, program.shardings[0], program.mesh, program.sub_axes))
    assert np.array_equal(y.pieces(), np.full((count, 2), 1 - count))
    assert half.data.shape == (1, count) and program.memory().arguments == 8 * count


# What is kept, and what it costs


CHAIN = """module {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%x: tensor<64x64xf32> {weft.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
      -> tensor<64x64xf32> {
    %0 = stablehlo.add %x, %x : tensor<64x64xf32>
    %1 = stablehlo.multiply %0, %x : tensor<64x64xf32>
    %2 = stablehlo.tanh %1 : tensor<64x64xf32>
    %3 = stablehlo.subtract %2, %x : tensor<64x64xf32>
    return %3 : tensor<64x64xf32>
  }
}"""


@pytest.mark.parametrize("target", ["numpy", "toy"], indirect=True)
def test_a_chain_is_computed_in_place():
    memory = local_program(parse(CHAIN)).memory()
    size = 4 * 64 * 64 * 4
    assert (memory.arguments, memory.results, memory.arena, memory.others) == (size, size, size, 0)
    assert memory.peak == 3 * size


def test_memory_is_used_again_from_run_to_run():
    program = local_program(parse(CHAIN))
    x = split(np.ones((256, 64), np.float32), program.shardings[0], program.mesh, program.sub_axes)
    first = program(x)[0].data.copy()
    (frame,) = program.frames
    again = program(x)[0]
    assert program.frames[0] is frame
    assert np.array_equal(again.data, first)
    assert again.owned


def test_equal_values_are_computed_once():
    text = CHAIN.replace('[{"x"}, {}]', "[{}, {}]")
    program = local_program(parse(text))
    (made,) = program(one_for_all(np.ones((64, 64), np.float32), program.sub_axes))
    assert made.data.shape == (1, 64, 64)


def test_what_must_not_vary_is_refused_when_it_does():
    program = local_program(parse(CHAIN.replace('[{"x"}, {}]', "[{}, {}]")))
    different = Stacked(np.ones((4, 64, 64), np.float32), program.sub_axes)
    with pytest.raises(WeftError, match="differs between devices"):
        program(different)


@pytest.mark.parametrize(
    "array, message",
    [
        (np.ones((4, 64, 63), np.float32), "argument 0 holds float32"),
        (np.ones((4, 64, 64), np.float64), "argument 0 holds float64"),
    ],
)
def test_arguments_of_other_types_are_refused(array, message):
    program = local_program(parse(CHAIN))
    with pytest.raises(WeftError, match=message):
        program(Stacked(array, program.sub_axes))
    with pytest.raises(WeftError, match="takes 1 arguments, 2 given"):
        program(Stacked(array, program.sub_axes), Stacked(array, program.sub_axes))


def test_what_is_no_local_program_is_refused():
    text = """module { sdy.mesh @mesh = <["x"=2]>
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"x"}]>]
        out_shardings=[<@mesh, [{"x"}]>] manual_axes={"x"} (%a: tensor<2xf32>) {
      sdy.return %a : tensor<2xf32>
    } : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""
    with pytest.raises(Unsupported, match="manual_computation does not run in lockstep") as caught:
        local_program(parse(text))
    assert "partition the program first" in caught.value.help
    assert caught.value.loc is not None and caught.value.loc.known


def test_every_annotation_of_shardys_is_transparent():
    assert kinds()[ShardyAllSlice.name] == "stacked"


# Numbers


@pytest.mark.parametrize("target", ["numpy"], indirect=True)
def test_narrow_floats_are_rounded_after_every_op():
    text = """func.func @main(%x: tensor<4xbf16>, %y: tensor<4xbf16>) -> tensor<4xbf16> {
    %0 = stablehlo.multiply %x, %y : tensor<4xbf16>
    %1 = stablehlo.add %0, %x : tensor<4xbf16>
    %2 = stablehlo.divide %1, %y : tensor<4xbf16>
    return %2 : tensor<4xbf16>
  }"""
    from ml_dtypes import bfloat16

    draw = np.random.default_rng(0)
    x, y = (draw.standard_normal((2, 4)).astype(bfloat16) for _ in range(2))
    module = parse(text)
    (expected,), (made,) = evaluate(module, x, y, devices=2), lockstep(module, x, y, devices=2)
    assert np.array_equal(made, expected)


def test_sums_over_devices_inside_of_products_are_sums():
    """Also where the sum follows after a transpose, and where other axes are left to be summed."""
    text = f"""module {{
  sdy.mesh @mesh = <["x"=2, "y"=3]>
  func.func @main(%x: tensor<2x3xf32> {{weft.sharding = #sdy.sharding<@mesh, [{{}}, {{"y"}}]>}},
                  %w: tensor<3x2xf32> {{weft.sharding = #sdy.sharding<@mesh, [{{"y"}}, {{}}]>}})
      -> tensor<2x2xf32> {{
    %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
    %2 = "stablehlo.all_reduce"(%1) <{{
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
      replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [
        #stablehlo.axis_ref<name = "y">, #stablehlo.axis_ref<name = "x">]>,
      use_global_device_ids}}> ({{{SUM}
    }}) : (tensor<2x2xf32>) -> tensor<2x2xf32>
    return %2 : tensor<2x2xf32>
  }}
}}"""
    module = parse(text)
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((2, 9)), draw.standard_normal((9, 2))
    x, w = x.astype(np.float32), w.astype(np.float32)
    for fold in (True, False):
        program = local_program(module, fold=fold)
        given = [
            split(a, s, program.mesh, program.sub_axes)
            for a, s in zip((x, w), program.shardings, strict=True)
        ]
        (made,) = program.checked(*given)
        assert made.data.shape[:2] == (1, 1)
        assert_close(made.piece(0), 2 * (x @ w).T, 9)


@pytest.mark.parametrize("how", ["add", "max", "min", "mul"])
def test_only_sums_are_folded_into_products(how):
    """A product may sum over devices itself what is summed next, and nothing else."""
    mesh, out = Mesh(a=4), tensor(8, 3)
    x, y = args = (Value(tensor(8, 5), None, 0), Value(tensor(5, 3), None, 1))
    along = MeshAxes("mesh", (Axis("a"),))
    products = [apply(DotGeneral(DotDims((), (), (1,), (0,)), out), x, y) for _ in range(3)]
    one, two, three = (node.results[0] for node in products)
    met = [
        apply(
            VariadicReduceScatter((0, 0), SHORT_NAMES[how], along, (tensor(2, 3),) * 2), one, two
        ),
        apply(
            AllReduce(along, CHANNEL, use_global_device_ids=True),
            three,
            regions=(combiner(how, out),),
        ),
    ]
    body = Region(args, [*products, *met], tuple(v for node in met for v in node.results))
    module = Module({"main": Function("main", body)}, {"mesh": mesh})
    rng = np.random.default_rng(1)
    given = [rng.standard_normal((4, *v.type.shape)).astype("f") for v in args]
    assert_same(module, *given, length=20)
