"""Evaluation: arguments, devices that meet or wait for ever, regions, calls and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ops.draw import array
from weft.capture import parse
from weft.errors import Unsupported, WeftError
from weft.evaluate import evaluate
from weft.ir.types import DTYPES

TWICE = """
func.func @main(%x: tensor<2xf32>, %n: tensor<i32>) -> (tensor<2xf32>, tensor<i32>) {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  return %0, %n : tensor<2xf32>, tensor<i32>
}
func.func @three() -> tensor<i32> {
  %0 = stablehlo.constant dense<3> : tensor<i32>
  return %0 : tensor<i32>
}
"""
X, N = np.array([1, 2], np.float32), np.array(7, np.int32)


def test_results_come_in_order():
    a, b = evaluate(parse(TWICE), X, N)
    assert a.tolist() == [2, 4] and a.dtype == np.float32
    assert b == 7 and b.dtype == np.int32 and isinstance(b, np.ndarray)


def test_python_numbers_and_lists_are_taken():
    a, b = evaluate(parse(TWICE), [1.5, 2.5], 3)
    assert a.dtype == np.float32 and a.tolist() == [3, 5] and b == 3


def test_any_function_can_be_run():
    assert evaluate(parse(TWICE), func="three")[0] == 3
    with pytest.raises(WeftError, match="no function 'four'"):
        evaluate(parse(TWICE), func="four")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((X,), "takes 2 arguments, not 1"),
        ((X, N, N), "takes 2 arguments, not 3"),
        ((X.astype(np.float64), N), "argument 0 holds float64"),
        ((np.zeros(3, np.float32), N), r"argument 0 has the shape \(3,\)"),
        ((X, X), "argument 1 holds float32"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[Any, ...], message: str):
    with pytest.raises(WeftError, match=message) as caught:
        evaluate(parse(TWICE), *arguments)
    assert caught.value.help


def test_the_input_is_not_changed():
    given = X.copy()
    results = evaluate(parse(TWICE), given, N)
    assert np.array_equal(given, X) and not np.shares_memory(results[0], given)


# Devices

SUM = """
func.func @main(%x: tensor<2xf32>) -> (tensor<2xf32>, tensor<ui32>, tensor<ui32>) {
  %0 = "stablehlo.all_reduce"(%x) <{
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>,
    replica_groups = dense<GROUPS> : tensor<SHAPExi64>, use_global_device_ids}> ({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %1 = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %1 : tensor<f32>
  }) : (tensor<2xf32>) -> tensor<2xf32>
  %2 = stablehlo.replica_id : tensor<ui32>
  %3 = stablehlo.partition_id : tensor<ui32>
  return %0, %2, %3 : tensor<2xf32>, tensor<ui32>, tensor<ui32>
}
"""


def summed(groups: str, shape: str) -> str:
    return SUM.replace("GROUPS", groups).replace("SHAPE", shape)


def test_devices_meet_in_their_groups():
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    total, replica, partition = evaluate(parse(summed("[[0, 2], [1, 3]]", "2x2")), x, devices=4)
    assert total.tolist() == [[4, 6], [8, 10], [4, 6], [8, 10]]
    assert replica.tolist() == [0] * 4 and partition.tolist() == [0, 1, 2, 3]


def test_replicas_and_partitions_are_numbered():
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    total, replica, partition = evaluate(parse(summed("[[0, 1, 2, 3]]", "1x4")), x, devices=(2, 2))
    assert total.tolist() == [[12, 16]] * 4
    assert replica.tolist() == [0, 0, 1, 1] and partition.tolist() == [0, 1, 0, 1]


def test_arguments_have_a_device_dim():
    with pytest.raises(WeftError, match="on each of 4 devices") as caught:
        evaluate(parse(summed("[[0, 2], [1, 3]]", "2x2")), X, devices=4)
    assert "(4, 2)" in caught.value.help
    with pytest.raises(WeftError, match="0 devices"):
        evaluate(parse(TWICE), X, N, devices=0)


def test_groups_must_fit_the_devices():
    x = np.zeros((2, 2), np.float32)
    with pytest.raises(WeftError, match="device 3 is in a group, but only 2 run"):
        evaluate(parse(summed("[[0, 3], [1, 2]]", "2x2")), x, devices=2)
    with pytest.raises(WeftError, match="device 1 is in no group"):
        evaluate(parse(summed("[[0]]", "1x1")), x, devices=2)


APART = """
func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
  %p = stablehlo.partition_id : tensor<ui32>
  %c = stablehlo.constant dense<0> : tensor<ui32>
  %q = stablehlo.compare EQ, %p, %c : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
  %r = "stablehlo.if"(%q) ({
    %0 = "stablehlo.collective_permute"(%x) <{
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>,
      source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}>
      : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %0 : tensor<2xf32>
  }, {
    OTHER
  }) : (tensor<i1>) -> tensor<2xf32>
  return %r : tensor<2xf32>
}
"""
SAME = """%0 = "stablehlo.collective_permute"(%x) <{
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>,
      source_target_pairs = dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>}>
      : (tensor<2xf32>) -> tensor<2xf32>
    stablehlo.return %0 : tensor<2xf32>"""


def test_devices_may_meet_from_different_branches():
    x = np.array([[1, 2], [3, 4]], np.float32)
    (result,) = evaluate(parse(APART.replace("OTHER", SAME)), x, devices=2)
    assert result.tolist() == [[3, 4], [1, 2]]


def test_devices_that_wait_for_ever_are_told_of():
    x = np.zeros((2, 2), np.float32)
    program = APART.replace("OTHER", "stablehlo.return %x : tensor<2xf32>")
    with pytest.raises(WeftError, match="deadlock") as caught:
        evaluate(parse(program), x, devices=2)
    assert "devices [0] wait in stablehlo.collective_permute" in caught.value.message
    assert caught.value.loc is not None and caught.value.loc.line == ("-", 7)


# Regions and calls


def test_values_live_as_long_as_inner_regions_need_them():
    text = """
func.func @main(%p: tensor<i1>, %x: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %x : tensor<2xf32>
  %1 = "stablehlo.if"(%p) ({
    %2 = "stablehlo.if"(%p) ({
      stablehlo.return %0 : tensor<2xf32>
    }, {
      stablehlo.return %x : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>
    stablehlo.return %2 : tensor<2xf32>
  }, {
    stablehlo.return %x : tensor<2xf32>
  }) : (tensor<i1>) -> tensor<2xf32>
  return %1 : tensor<2xf32>
}
"""
    assert evaluate(parse(text), True, X)[0].tolist() == [2, 4]
    assert evaluate(parse(text), False, X)[0].tolist() == [1, 2]


LOOP = """
func.func @main(%n: tensor<i32>) -> (tensor<i32>, tensor<i32>) {
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = "stablehlo.while"(%n, %one) ({
  ^bb0(%i: tensor<i32>, %a: tensor<i32>):
    %c = stablehlo.compare GT, %i, %one : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%i: tensor<i32>, %a: tensor<i32>):
    %b = func.call @times(%a, %i) : (tensor<i32>, tensor<i32>) -> tensor<i32>
    %j = stablehlo.subtract %i, %one : tensor<i32>
    stablehlo.return %j, %b : tensor<i32>, tensor<i32>
  }) : (tensor<i32>, tensor<i32>) -> (tensor<i32>, tensor<i32>)
  return %r#0, %r#1 : tensor<i32>, tensor<i32>
}
func.func private @times(%a: tensor<i32>, %b: tensor<i32>) -> tensor<i32> {
  %0 = stablehlo.multiply %a, %b : tensor<i32>
  return %0 : tensor<i32>
}
"""


def test_loops_call_functions():
    assert [int(r) for r in evaluate(parse(LOOP), 6)] == [1, 720]
    assert [int(r) for r in evaluate(parse(LOOP), 0)] == [0, 1]


def test_endless_recursion_is_refused():
    text = """
func.func @main(%x: tensor<f32>) -> tensor<f32> {
  %0 = func.call @main(%x) : (tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}
"""
    with pytest.raises(Unsupported, match="nested too deeply"):
        evaluate(parse(text), 1.0)


@pytest.mark.parametrize("name", ["f32", "i8", "bf16", "ui16"])
def test_plain_and_general_regions_agree(name: str):
    """A region of elementwise ops runs on whole arrays; one with a branch, element by element."""
    text = """
func.func @main(%x: tensor<4x6xT>, %z: tensor<T>) -> (tensor<4xT>, tensor<4xT>) {
  %0 = "stablehlo.reduce"(%x, %z) <{dimensions = array<i64: 1>}> ({
  ^bb0(%a: tensor<T>, %b: tensor<T>):
    %2 = stablehlo.maximum %a, %b : tensor<T>
    stablehlo.return %2 : tensor<T>
  }) : (tensor<4x6xT>, tensor<T>) -> tensor<4xT>
  %1 = "stablehlo.reduce"(%x, %z) <{dimensions = array<i64: 1>}> ({
  ^bb0(%a: tensor<T>, %b: tensor<T>):
    %2 = stablehlo.compare GE, %a, %b : (tensor<T>, tensor<T>) -> tensor<i1>
    %3 = "stablehlo.if"(%2) ({
      stablehlo.return %a : tensor<T>
    }, {
      stablehlo.return %b : tensor<T>
    }) : (tensor<i1>) -> tensor<T>
    stablehlo.return %3 : tensor<T>
  }) : (tensor<4x6xT>, tensor<T>) -> tensor<4xT>
  return %0, %1 : tensor<4xT>, tensor<4xT>
}
"""
    x = array((4, 6), DTYPES[name], 3)
    plain, general = evaluate(
        parse(text.replace("xT", f"x{name}").replace("<T", f"<{name}")), x, x[0, 0]
    )
    assert np.array_equal(plain, general) and np.array_equal(plain, x.max(1).clip(x[0, 0]))


# Refusals while it runs


@pytest.mark.parametrize(
    "line, message",
    [
        ('"stablehlo.custom_call"(%x) <{call_target_name = "magic"}>', "custom call 'magic'"),
    ],
)
def test_what_weft_does_not_know_is_refused(line: str, message: str):
    text = f"""func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
  %0 = {line} : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}}
"""
    with pytest.raises(Unsupported, match=message) as caught:
        evaluate(parse(text), X)
    assert caught.value.loc is not None and caught.value.loc.line == ("-", 2)
    assert caught.value.node is not None and "custom_call" in caught.value.node


def test_tokens_and_tuples_come_back_as_they_are():
    text = """
func.func @main(%x: tensor<f32>) -> (!stablehlo.token, tuple<tensor<f32>, tensor<f32>>) {
  %0 = stablehlo.after_all : !stablehlo.token
  %1 = stablehlo.tuple %x, %x : tuple<tensor<f32>, tensor<f32>>
  return %0, %1 : !stablehlo.token, tuple<tensor<f32>, tensor<f32>>
}
"""
    token, pair = evaluate(parse(text), 2.0)
    assert token is None and isinstance(pair, tuple) and [float(p) for p in pair] == [2, 2]
