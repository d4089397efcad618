"""Seconds for nodes: a roofline for work, travel for collectives, rounds for loops."""

from __future__ import annotations

import pytest

from weft.capture import parse
from weft.cost import Costs, one_domain_estimate, trips, work_seconds
from weft.ir.module import Module, Node
from weft.ir.work import Work
from weft.machine import H100, HOST

LOOP = """
module {
  func.func @main(%x: tensor<64xf32>, %n: tensor<i32>) -> tensor<64xf32> {
    %zero = stablehlo.constant dense<FIRST> : tensor<i32>
    %out:2 = "stablehlo.while"(%zero, %x) ({
    ^bb0(%i: tensor<i32>, %y: tensor<64xf32>):
      %last = stablehlo.constant dense<10> : tensor<i32>
      %more = stablehlo.compare HOW, %i, LIMIT : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }, {
    ^bb0(%i: tensor<i32>, %y: tensor<64xf32>):
      %step = stablehlo.constant dense<3> : tensor<i32>
      %next = stablehlo.add %step, %i : tensor<i32>
      %twice = stablehlo.add %y, %y : tensor<64xf32>
      stablehlo.return %next, %twice : tensor<i32>, tensor<64xf32>
    }) : (tensor<i32>, tensor<64xf32>) -> (tensor<i32>, tensor<64xf32>)
    return %out#1 : tensor<64xf32>
  }
}
"""


def loop(first: int = 0, how: str = "LT", limit: str = "%last") -> Module:
    text = LOOP.replace("FIRST", str(first)).replace("HOW", how).replace("LIMIT", limit)
    return parse(text)


def the_loop(module: Module) -> Node:
    return next(n for n in module.nodes() if n.op.name == "stablehlo.while")


@pytest.mark.parametrize(
    ("first", "how", "rounds"), [(0, "LT", 4), (1, "LT", 3), (1, "LE", 4), (20, "LT", 0)]
)
def test_trips_are_counted(first: int, how: str, rounds: int):
    assert trips(the_loop(loop(first, how))) == rounds


@pytest.mark.parametrize(
    ("first", "how", "rounds"),
    [(10, "NE", 0), (1, "NE", 3), (0, "NE", None), (13, "NE", None), (20, "NE", None)],
)
def test_trips_up_to_a_number_that_is_met_or_missed(first: int, how: str, rounds: int | None):
    assert trips(the_loop(loop(first, how))) == rounds


@pytest.mark.parametrize(
    ("last", "how", "rounds"),
    [(125, "LT", 42), (127, "LT", None), (123, "LE", 42), (126, "LE", None), (127, "LE", None)],
)
def test_a_counter_that_wraps_around_never_ends(last: int, how: str, rounds: int | None):
    text = LOOP.replace("FIRST", "0").replace("HOW", how).replace("LIMIT", "%last")
    text = text.replace("dense<10>", f"dense<{last}>").replace("i32", "i8")
    assert trips(the_loop(parse(text))) == rounds


def test_trips_that_the_text_does_not_tell():
    assert trips(the_loop(loop(limit="%n"))) is None
    assert trips(the_loop(loop(how="GT"))) is None


CARRIED = """
func.func @main(%n: tensor<i32>) -> tensor<i32> {
  %first = stablehlo.constant dense<2> : tensor<i32>
  %last = stablehlo.constant dense<9> : tensor<i32>
  %out:2 = "stablehlo.while"(%first, BEGIN) ({
  ^bb0(%i: tensor<i32>, %end: tensor<i32>):
    %more = stablehlo.compare HOW, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  }, {
  ^bb0(%i: tensor<i32>, %end: tensor<i32>):
    %step = stablehlo.constant dense<STEP> : tensor<i32>
    %next = stablehlo.NEXT : tensor<i32>
    stablehlo.return %next, END : tensor<i32>, tensor<i32>
  }) : (tensor<i32>, tensor<i32>) -> (tensor<i32>, tensor<i32>)
  return %out#0 : tensor<i32>
}"""


@pytest.mark.parametrize(
    ("changes", "rounds"),
    [
        ({}, 7),  # the limit is carried along unchanged
        ({"END": "%next"}, None),  # the limit moves
        ({"BEGIN": "%n"}, None),  # the limit is not known
        ({"HOW": "LE"}, 8),
        ({"HOW": "NE"}, 7),
        ({"HOW": "NE", "STEP": "2"}, None),  # it goes past the limit, and on
        ({"HOW": "GE"}, None),
        ({"STEP": "2"}, 4),
        ({"STEP": "0"}, None),
        ({"STEP": "-1"}, None),
        ({"NEXT": "add %step, %i"}, 7),
        ({"NEXT": "add %i, %i"}, None),
        ({"NEXT": "add %step, %end"}, None),  # not of the counter
        ({"NEXT": "multiply %i, %step"}, None),
    ],
)
def test_trips_of_loops_that_carry_their_limit(changes: dict[str, str], rounds: int | None):
    usual = {"BEGIN": "%last", "HOW": "LT", "STEP": "1", "NEXT": "add %i, %step", "END": "%end"}
    text = CARRIED
    for word, becomes in (usual | changes).items():
        text = text.replace(word, becomes)
    assert trips(the_loop(parse(text))) == rounds


def test_a_loop_costs_its_rounds():
    four, three = (Costs(m, H100).seconds(the_loop(m)) for m in (loop(0), loop(1)))
    assert four == pytest.approx(4 / 3 * three)


def test_work_is_bound_by_the_slower_side():
    computing = work_seconds(Work(flops=10**12, bytes=1), H100.vector, H100)
    moving = work_seconds(Work(flops=1, bytes=10**12), H100.vector, H100)
    assert computing == pytest.approx(10**12 / H100.vector, rel=0.01)
    assert moving == pytest.approx(10**12 / H100.bandwidth, rel=0.01)
    assert work_seconds(Work(), H100.vector, H100) == 0.0


PROGRAM = """
module {
  sdy.mesh @mesh = <["x"=4]>
  func.func @main(%x: tensor<256x256xbf16>) -> tensor<256x256xbf16> {
    %0 = call @square(%x) : (tensor<256x256xbf16>) -> tensor<256x256xbf16>
    %1 = "stablehlo.all_reduce"(%0) <{
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids,
      replica_groups = #stablehlo.replica_group_mesh_axes<
        mesh = @mesh, axes = [#stablehlo.axis_ref<name = "x">]>
    }> ({
    ^bb0(%a: tensor<bf16>, %b: tensor<bf16>):
      %2 = stablehlo.add %a, %b : tensor<bf16>
      stablehlo.return %2 : tensor<bf16>
    }) : (tensor<256x256xbf16>) -> tensor<256x256xbf16>
    %3 = stablehlo.reshape %1 : (tensor<256x256xbf16>) -> tensor<65536xbf16>
    return %1 : tensor<256x256xbf16>
  }
  func.func private @square(%x: tensor<256x256xbf16>) -> tensor<256x256xbf16> {
    %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
      : (tensor<256x256xbf16>, tensor<256x256xbf16>) -> tensor<256x256xbf16>
    return %0 : tensor<256x256xbf16>
  }
}
"""


def test_each_kind_of_node():
    module = parse(PROGRAM)
    costs = Costs(module, H100)
    call, reduce, reshape = module.function("main").body.nodes
    (dot,) = module.function("square").body.nodes
    assert costs.seconds(call) == costs.seconds(dot) == costs.totals.function("square")
    assert costs.seconds(reshape) == 0.0
    assert costs.group_extent(reduce.op).devices == 4
    assert (
        costs.seconds(reduce)
        == one_domain_estimate("reduce", 256 * 256 * 2, 4, H100, "bf16").seconds
    )
    estimate = costs.collective(reduce.op, reduce.operand_types, reduce.types)
    assert estimate.source == "measured on sm_90, as f32"
    assert Costs(module, HOST).seconds(dot) > costs.seconds(dot)
