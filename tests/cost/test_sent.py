"""Bytes that are sent: every kind of collective, groups of every size, loops, branches, calls."""

from __future__ import annotations

import pytest

from weft.capture import parse
from weft.cost.sent import bytes_sent, share_sent, total_sent
from weft.ir.module import Module

HEAD = 'sdy.mesh @mesh = <["x"=4, "y"=2]>\n'
CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"


def along(*axes: str) -> str:
    shown = ", ".join(f'#stablehlo.axis_ref<name = "{a}">' for a in axes)
    return f"replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [{shown}]>"


def gather(value: str, size: int, *axes: str) -> str:
    many = {"x": 4, "y": 2}
    whole = size
    for axis in axes:
        whole *= many[axis]
    return (
        f'"stablehlo.all_gather"({value}) <{{all_gather_dim = 0 : i64, {along(*axes)}, {CHANNEL}, '
        f"use_global_device_ids}}> : (tensor<{size}xf32>) -> tensor<{whole}xf32>"
    )


def reduce(value: str, size: int, *axes: str) -> str:
    return (
        f'"stablehlo.all_reduce"({value}) <{{{along(*axes)}, {CHANNEL}, use_global_device_ids}}> '
        "({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %c = stablehlo.add %a, %b : tensor<f32> "
        f"stablehlo.return %c : tensor<f32> }}) : (tensor<{size}xf32>) -> tensor<{size}xf32>"
    )


def module(body: str, more: str = "") -> Module:
    text = f"{HEAD}func.func @main(%0: tensor<8xf32>, %i: tensor<i32>) {{\n{body}\nreturn\n}}\n"
    return parse(text + more)


@pytest.mark.parametrize(
    ("body", "over", "sent"),
    [
        (f"%1 = {gather('%0', 8, 'x')}", "x", 4 * 32 * 3 / 4),
        (f"%1 = {gather('%0', 8, 'y', 'x')}", "y x", 64 * 4 * 7 / 8),
        (f"%1 = {reduce('%0', 8, 'y')}", "y", 2 * 32 / 2),
        (
            f'%1 = "stablehlo.all_to_all"(%0) <{{split_dimension = 0 : i64, concat_dimension = 0 : '
            f"i64, split_count = 4 : i64, {along('x')}, {CHANNEL}}}> : (tensor<8xf32>) -> "
            "tensor<8xf32>",
            "x",
            32 * 3 / 4,
        ),
        (
            f'%1 = "stablehlo.collective_permute"(%0) <{{source_target_pairs = dense<[[0, 1], '
            f"[1, 0], [2, 2]]> : tensor<3x2xi64>, {CHANNEL}}}> : (tensor<8xf32>) -> tensor<8xf32>",
            "8",
            32 * 2 / 8,
        ),
    ],
)
def test_one_collective(body: str, over: str, sent: float):
    (row,) = bytes_sent(module(body))
    assert (row.over, row.bytes, row.count) == (over, sent, 1)
    assert row.loc.known


def test_a_group_of_one_sends_nothing():
    assert share_sent("reduce", 1) == share_sent("gather", 1) == 0.0


LOOP = f"""%z = stablehlo.constant dense<0> : tensor<i32>
%r:2 = stablehlo.while(%n = %z, %v = %0) : tensor<i32>, tensor<8xf32>
cond {{
  %l = stablehlo.constant dense<5> : tensor<i32>
  %t = stablehlo.compare LT, %n, %l : (tensor<i32>, tensor<i32>) -> tensor<i1>
  stablehlo.return %t : tensor<i1>
}} do {{
  %s = stablehlo.constant dense<1> : tensor<i32>
  %m = stablehlo.add %n, %s : tensor<i32>
  %w = {reduce("%v", 8, "x")}
  stablehlo.return %m, %w : tensor<i32>, tensor<8xf32>
}}"""


def test_a_loop_counts_its_rounds():
    (row,) = bytes_sent(module(LOOP))
    assert (row.count, row.total) == (5, 5 * 2 * 32 * 3 / 4)


def test_a_loop_of_unknown_length_counts_once():
    (row,) = bytes_sent(module(LOOP.replace("%n, %l : (", "%n, %i : (")))
    assert row.count == 1


def test_of_branches_the_one_that_sends_most_counts():
    body = f"""%1 = "stablehlo.case"(%i) ({{
      %2 = {reduce("%0", 8, "y")}
      stablehlo.return %2 : tensor<8xf32>
    }}, {{
      %2 = {reduce("%0", 8, "x")}
      stablehlo.return %2 : tensor<8xf32>
    }}) : (tensor<i32>) -> tensor<8xf32>"""
    assert [row.over for row in bytes_sent(module(body))] == ["x"]


def test_a_function_counts_at_each_call():
    call = "func.call @f(%0) : (tensor<8xf32>) -> tensor<8xf32>"
    more = f"""func.func private @f(%0: tensor<8xf32>) -> tensor<8xf32> {{
      %1 = {reduce("%0", 8, "x")}
      return %1 : tensor<8xf32>
    }}"""
    rows = bytes_sent(module(f"%1 = {call}\n%2 = {call}", more))
    assert total_sent(rows) == 2 * 2 * 32 * 3 / 4
