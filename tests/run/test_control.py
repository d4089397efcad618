"""Control flow in lockstep: devices that go together, and devices that go different ways."""

from __future__ import annotations

import numpy as np
import pytest

from tests.run.stacks import along, assert_same, lockstep
from weft.capture import parse
from weft.errors import WeftError
from weft.executable.items import Loop
from weft.ir.module import Module
from weft.mesh import Mesh
from weft.pipeline import local_program

MESH = Mesh(a=2, b=3)
ALL_REDUCE = """"stablehlo.all_reduce"(%{x}) <{{
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [{axes}]>,
    use_global_device_ids}}> ({{
  ^bb0(%l: tensor<f32>, %r: tensor<f32>):
    %sum = stablehlo.add %l, %r : tensor<f32>
    stablehlo.return %sum : tensor<f32>
  }}) : (tensor<4xf32>) -> tensor<4xf32>"""


def summed(x: str, *axes: str) -> str:
    named = ", ".join(f'#stablehlo.axis_ref<name = "{a}">' for a in axes)
    return ALL_REDUCE.format(x=x, axes=named)


def program(body: str, inputs: str = "%x: tensor<4xf32>, %n: tensor<i32>") -> Module:
    text = f"""module {{
  sdy.mesh @mesh = <["a"=2, "b"=3]>
  func.func @main({inputs}) -> tensor<4xf32> {{
    %one = stablehlo.constant dense<1> : tensor<i32>
    %half = stablehlo.constant dense<0.5> : tensor<4xf32>
    {body}
  }}
}}"""
    return parse(text)


X = np.arange(24, dtype=np.float32).reshape(6, 4) / 7
N = np.array([3, 0, 5, 1, 3, 7], np.int32)
LOOP = """
    %r:2 = stablehlo.while(%c = %n, %v = %x) : tensor<i32>, tensor<4xf32>
    cond {{
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %go = stablehlo.compare GT, %c, %zero, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    }} do {{
      %less = stablehlo.subtract %c, %one : tensor<i32>
      {work}
      stablehlo.return %less, %out : tensor<i32>, tensor<4xf32>
    }}
    return %r#1 : tensor<4xf32>"""
SCALE = """%w = stablehlo.multiply %v, %half : tensor<4xf32>
      %out = stablehlo.add %w, %x : tensor<4xf32>"""
IF = """
    %two = stablehlo.constant dense<2> : tensor<i32>
    %p = stablehlo.compare GT, %n, %two, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %r = "stablehlo.if"(%p) ({{
      {yes}
      stablehlo.return %y : tensor<4xf32>
    }}, {{
      {no}
      stablehlo.return %z : tensor<4xf32>
    }}) : (tensor<i1>) -> tensor<4xf32>
    return %r : tensor<4xf32>"""
DOUBLE = "%y = stablehlo.add %x, %x : tensor<4xf32>"
HALVE = "%z = stablehlo.multiply %x, %half : tensor<4xf32>"
EVERY = [("a", "b"), ("a", "b")]


def numbers(*axes: str) -> np.ndarray:
    """Loop counts that vary along axes only."""
    a, b = np.divmod(np.arange(6), 3)
    return ((a * 2 if "a" in axes else 0) + (b if "b" in axes else 0) + np.ones(6)).astype(np.int32)


@pytest.mark.parametrize("axes", [(), ("a",), ("b",), ("a", "b")])
@pytest.mark.parametrize("split", [(), ("b",), ("a", "b")])
def test_a_loop_ends_for_each_device_in_its_time(axes, split):
    rows = {(): np.zeros(6, int), ("b",): np.arange(6) % 3, ("a", "b"): np.arange(6)}[split]
    x = X[rows]
    module = along(program(LOOP.format(work=SCALE)), [split, axes], MESH)
    assert_same(module, x, numbers(*axes), length=8)


def test_a_loop_that_never_begins():
    assert_same(program(LOOP.format(work=SCALE)), X, np.zeros(6, np.int32))


@pytest.mark.parametrize("axes", [("a",), ("b",), ("a", "b")])
def test_branches_are_taken_by_those_whose_predicate_holds(axes):
    module = along(program(IF.format(yes=DOUBLE, no=HALVE)), [("a", "b"), axes], MESH)
    assert_same(module, X, numbers(*axes))


def test_devices_meet_inside_a_branch_that_their_group_takes():
    yes = "%y = " + summed("x", "b")
    module = along(program(IF.format(yes=yes, no=HALVE)), [("a", "b"), ("a",)], MESH)
    assert_same(module, X, numbers("a"), length=8)


def test_devices_meet_inside_a_branch_that_varies_along_everything():
    yes = "%y = " + summed("x", "b")
    module = along(program(IF.format(yes=yes, no=HALVE)), EVERY, MESH)
    assert_same(module, X, numbers("a"), length=8)


def test_devices_meet_inside_a_loop_that_their_group_runs_together():
    work = "%s = " + summed("v", "b") + "\n%out = stablehlo.multiply %s, %half : tensor<4xf32>"
    module = along(program(LOOP.format(work=work)), [("a", "b"), ("a",)], MESH)
    assert_same(module, X, numbers("a"), length=8)


@pytest.mark.parametrize("flow", ["branch", "loop"])
def test_a_group_that_is_torn_apart_is_an_error_with_its_line(flow):
    if flow == "branch":
        text, count = IF.format(yes="%y = " + summed("x", "b"), no=HALVE), numbers("b")
    else:
        work = "%out = " + summed("v", "b")
        text, count = LOOP.format(work=work), numbers("b")
    module = along(program(text), EVERY, MESH)
    with pytest.raises(WeftError, match="went another way") as caught:
        lockstep(module, X, count)
    assert "stablehlo.all_reduce" in str(caught.value)
    assert "on a real machine this program hangs" in caught.value.help
    assert caught.value.loc is not None and caught.value.loc.known


def test_branches_inside_loops_inside_branches():
    inner = """%odd = stablehlo.and %c, %one : tensor<i32>
      %q = stablehlo.compare EQ, %odd, %one, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      %out = "stablehlo.if"(%q) ({
        %o1 = stablehlo.add %v, %x : tensor<4xf32>
        stablehlo.return %o1 : tensor<4xf32>
      }, {
        %o2 = stablehlo.multiply %v, %half : tensor<4xf32>
        stablehlo.return %o2 : tensor<4xf32>
      }) : (tensor<i1>) -> tensor<4xf32>"""
    loop = (
        LOOP.format(work=inner).rsplit("return", 1)[0]
        + "%y = stablehlo.add %r2, %r2 : tensor<4xf32>"
    )
    loop = loop.replace("%r:2", "%rr:2").replace("%r2", "%rr#1")
    module = along(program(IF.format(yes=loop, no=HALVE)), EVERY, MESH)
    assert_same(module, X, N, length=8)


def test_who_a_device_is_does_not_change_inside_a_branch():
    yes = """%id = stablehlo.partition_id : tensor<ui32>
      %f = stablehlo.convert %id : (tensor<ui32>) -> tensor<f32>
      %y = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4xf32>"""
    module = along(program(IF.format(yes=yes, no=HALVE)), EVERY, MESH)
    assert_same(module, X, N)


def test_a_case_out_of_range_takes_the_last_branch():
    text = """%r = "stablehlo.case"(%n) ({
      stablehlo.return %x : tensor<4xf32>
    }, {
      stablehlo.return %half : tensor<4xf32>
    }, {
      %y = stablehlo.add %x, %x : tensor<4xf32>
      stablehlo.return %y : tensor<4xf32>
    }) : (tensor<i32>) -> tensor<4xf32>
    return %r : tensor<4xf32>"""
    count = np.array([0, 1, 2, -5, 9, 1], np.int32)
    assert_same(program(text), X, count)
    assert_same(along(program(text), [("a", "b"), ()], MESH), X, np.ones(6, np.int32))


def test_calls_are_made_where_they_stand_and_may_give_their_arguments():
    text = """module {
  sdy.mesh @mesh = <["a"=2, "b"=3]>
  func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>) {
    %0:3 = func.call @both(%x, %n) :
      (tensor<4xf32>, tensor<i32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>)
    %1 = stablehlo.add %0#0, %0#1 : tensor<4xf32>
    return %1, %0#2 : tensor<4xf32>, tensor<4xf32>
  }
  func.func @both(%a: tensor<4xf32>, %n: tensor<i32>)
      -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
    %0 = stablehlo.negate %a : tensor<4xf32>
    return %a, %0, %0 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
  }
}"""
    assert_same(parse(text), X, N)


def test_a_function_that_calls_itself_is_refused():
    text = """module {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %0 = func.call @main(%x) : (tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}"""
    with pytest.raises(WeftError, match="main calls itself"):
        local_program(parse(text))


SCAN = """module {
  sdy.mesh @mesh = <["a"=2, "b"=3]>
  func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> (tensor<5x4xf32>, tensor<4xf32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %five = stablehlo.constant dense<5> : tensor<i32>
    %empty = stablehlo.broadcast_in_dim %x, dims = [1] : (tensor<4xf32>) -> tensor<5x4xf32>
    %r:3 = stablehlo.while(%i = %zero, %ys = %empty, %v = %x) :
        tensor<i32>, tensor<5x4xf32>, tensor<4xf32>
    cond {
      %go = stablehlo.compare LT, %i, %five, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      BODY
      %next = stablehlo.add %i, %one : tensor<i32>
      stablehlo.return %next, %new, %w : tensor<i32>, tensor<5x4xf32>, tensor<4xf32>
    }
    %sum = stablehlo.add %r#2, %x : tensor<4xf32>
    return %r#1, %sum : tensor<5x4xf32>, tensor<4xf32>
  }
}"""
UPDATE = """%row = stablehlo.reshape %w : (tensor<4xf32>) -> tensor<1x4xf32>
      %new = stablehlo.dynamic_update_slice %ys, %row, %i, %zero :
        (tensor<5x4xf32>, tensor<1x4xf32>, tensor<i32>, tensor<i32>) -> tensor<5x4xf32>"""
READ = """stablehlo.dynamic_slice %ys, %i, %zero, sizes = [1, 4] :
        (tensor<5x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32>"""


by_numpy = pytest.mark.parametrize("target", ["numpy"], indirect=True)


def loops(body: str) -> list[bool]:
    """Which of the values that a loop carries it writes over, after checking what it gives."""
    module = parse(SCAN.replace("BODY", body))
    assert_same(module, X, N, length=8)
    program = local_program(module)
    (loop,) = [i for i in program.tiled.block.items if isinstance(i, Loop)]
    return [n in program.plan.own.get(loop.carried[0], ()) for n in range(3)]


@by_numpy
def test_a_loop_writes_what_it_carries_over_itself():
    assert loops("%w = stablehlo.add %v, %v : tensor<4xf32>\n" + UPDATE) == [True, True, False]


@by_numpy
def test_not_where_what_was_carried_is_still_read():
    later = (
        UPDATE
        + f"""
      %old = {READ}
      %flat = stablehlo.reshape %old : (tensor<1x4xf32>) -> tensor<4xf32>"""
    )
    body = "%u = stablehlo.add %v, %v : tensor<4xf32>\n" + later.replace("%w", "%u")
    body += "\n%w = stablehlo.add %u, %flat : tensor<4xf32>"
    assert loops(body) == [True, False, False]


@by_numpy
def test_not_where_a_view_of_what_was_carried_is_read_later():
    body = f"""%old = {READ}
      %flat = stablehlo.reshape %old : (tensor<1x4xf32>) -> tensor<4xf32>
      %u = stablehlo.add %v, %v : tensor<4xf32>
      {UPDATE.replace("%w", "%u")}
      %w = stablehlo.add %u, %flat : tensor<4xf32>"""
    assert loops(body) == [True, False, False]


@by_numpy
def test_not_where_it_is_carried_on_elsewhere():
    body = "%w = stablehlo.add %v, %v : tensor<4xf32>\n" + UPDATE.replace("%w", "%v")
    assert loops(body)[2] is False


TWICE = "%w = stablehlo.add %v, %v : tensor<4xf32>\n"
LATER = f"""%u = stablehlo.add %v, %v : tensor<4xf32>
  {UPDATE.replace("%w", "%u")}
  %old = {READ}
  %flat = stablehlo.reshape %old : (tensor<1x4xf32>) -> tensor<4xf32>
  %w = stablehlo.add %u, %flat : tensor<4xf32>"""


@pytest.mark.parametrize("target", ["toy"], indirect=True)
@pytest.mark.parametrize("body, once", [(TWICE + UPDATE, True), (LATER, False)])
def test_kernels_write_what_a_loop_carries_over_itself(body, once):
    """The sums that a loop carries have one buffer, and its stack has one if it is not read."""
    module = parse(SCAN.replace("BODY", body))
    program = local_program(module)
    assert_same(module, X, N, length=8)
    (loop,) = [i for i in program.tiled.block.items if isinstance(i, Loop)]
    turns = program.plan.rotations[loop.carried[0]]
    single = {turn.indices[0] for turn in turns if turn.buffers == 1}
    assert 2 in single
    assert (1 in single or 1 in program.plan.own.get(loop.carried[0], ())) is once


def test_a_branch_may_give_what_was_repeated_outside_of_it():
    """And nothing else: the repeated elements are needed, though a sum reads them, too."""
    body = """
    %two = stablehlo.constant dense<2> : tensor<i32>
    %p = stablehlo.compare GT, %n, %two, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %f = stablehlo.convert %n : (tensor<i32>) -> tensor<f32>
    %many = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %more = stablehlo.add %many, %x : tensor<4xf32>
    %given = "stablehlo.if"(%p) ({
      stablehlo.return %many : tensor<4xf32>
    }, {
      stablehlo.return %more : tensor<4xf32>
    }) : (tensor<i1>) -> tensor<4xf32>
    %s = SUM
    return %s : tensor<4xf32>"""
    module = program(body.replace("SUM", summed("given", "b")))
    assert_same(along(module, EVERY, MESH), X, np.array([3] * 6, np.int32), length=3, devices=6)
    assert_same(
        along(module, [("a", "b"), ()], MESH), X, np.array([3] * 6, np.int32), length=3, devices=6
    )


@pytest.mark.parametrize("axes", [(), ("a",), ("a", "b")])
def test_a_loop_may_carry_on_what_was_made_outside_of_it(axes):
    """It is still there after the loop, for those that run no round of it, too."""
    outside = "%y = stablehlo.exponential %x : tensor<4xf32>\n"
    loop = LOOP.format(work="").replace("%less, %out", "%less, %y")
    after = """%s = stablehlo.sine %y : tensor<4xf32>
    %t = stablehlo.add %r#1, %s : tensor<4xf32>
    return %t : tensor<4xf32>"""
    module = program(outside + loop.replace("return %r#1 : tensor<4xf32>", after))
    assert_same(along(module, [("a", "b"), axes], MESH), X, numbers(*axes) - 1, length=8)
