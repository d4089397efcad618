"""Lifetimes before tiling: when values are last read, and an estimate of what is live at once."""

from __future__ import annotations

import pytest

from tests.executable.test_memory import CHAIN, LOOP
from weft.capture import parse
from weft.optimize.scheduling.lifetimes import last_uses, live_bytes


def test_only_what_a_start_reads_is_in_use_until_its_done():
    text = """
    func.func @main(%x: tensor<4xf32>, %y: tensor<4xf32>) -> tensor<f32> {
      %zero = stablehlo.constant dense<0.0> : tensor<f32>
      %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0]
          : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
      %begun = "stablehlo.async_start"(%y) ({
      ^bb0(%z: tensor<4xf32>):
        %all = "stablehlo.all_gather"(%z) <{all_gather_dim = 0 : i64,
            replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<4xf32>) -> tensor<8xf32>
        stablehlo.return %all : tensor<8xf32>
      }) : (tensor<4xf32>) -> !stablehlo.future<tensor<8xf32>>
      %twice = stablehlo.add %sum, %sum : tensor<f32>
      %done = "stablehlo.async_done"(%begun) : (!stablehlo.future<tensor<8xf32>>) -> tensor<8xf32>
      %more = stablehlo.add %twice, %sum : tensor<f32>
      return %more : tensor<f32>
    }
    """
    body = parse(text).function("main").body
    names = [node.op.name.partition(".")[2] for node in body.nodes]
    x, y = body.args
    last = last_uses(body)
    assert names[last[x]] == "reduce"
    assert names[last[y]] == "async_done"
    assert names[last[body.nodes[names.index("reduce")].results[0]]] == "add"


def live(text: str) -> float:
    """The most bytes that are live at once in @main, in tensors of 256 bytes."""
    return live_bytes(parse(text), "main") / 256


def test_elementwise_chains_stay_in_one_buffer():
    assert live(CHAIN) == 2


def test_a_donated_argument_is_written_over():
    for attribute in ("tf.aliasing_output = 0 : i32", "jax.buffer_donor = true"):
        assert live(CHAIN.replace("tensor<64xf32>)", f"tensor<64xf32> {{{attribute}}})", 1)) == 1


@pytest.mark.parametrize(
    ("body", "tensors"),
    [
        # the carried tensor is one buffer, from before the loop to the result
        ("%w = stablehlo.add %z, %z : tensor<131072xf32>", 2),
        # reversed, it cannot be in its own place
        ("%w = stablehlo.reverse %z, dims = [0] : tensor<131072xf32>", 3),
        # what the body reads from outside is not its own to overwrite
        ("%w = stablehlo.add %x, %z : tensor<131072xf32>", 2),
    ],
)
def test_loops_carry_in_place(body: str, tensors: int):
    assert round(live(LOOP.replace("BODY", body)) / 2048) == tensors


def test_an_update_of_a_slice_is_in_place():
    text = """
    module {
      func.func @main(%x: tensor<16xf32>, %i: tensor<i32>) -> tensor<64xf32> {
        %zero = stablehlo.constant dense<0.0> : tensor<64xf32>
        %0 = stablehlo.dynamic_update_slice %zero, %x, %i
          : (tensor<64xf32>, tensor<16xf32>, tensor<i32>) -> tensor<64xf32>
        %1 = stablehlo.dynamic_update_slice %0, %x, %i
          : (tensor<64xf32>, tensor<16xf32>, tensor<i32>) -> tensor<64xf32>
        return %1 : tensor<64xf32>
      }
    }
    """
    assert live(text) * 256 == 64 + 64 + 256


def test_what_is_in_flight_keeps_its_operand():
    text = """
    module {
      func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
        %0 = stablehlo.sine %x : tensor<64xf32>
        %1 = "stablehlo.async_start"(%0) ({
        ^bb0(%a: tensor<64xf32>):
          %c = "stablehlo.collective_permute"(%a) <{
            source_target_pairs = dense<[[0, 0]]> : tensor<1x2xi64>
          }> : (tensor<64xf32>) -> tensor<64xf32>
          stablehlo.return %c : tensor<64xf32>
        }) : (tensor<64xf32>) -> !stablehlo.future<tensor<64xf32>>
        %2 = stablehlo.cosine %x : tensor<64xf32>
        %3 = "stablehlo.async_done"(%1) : (!stablehlo.future<tensor<64xf32>>) -> tensor<64xf32>
        %4 = stablehlo.add %2, %3 : tensor<64xf32>
        return %4 : tensor<64xf32>
      }
    }
    """
    assert live(text) == 4  # x, what travels, where it arrives, and the cosine


def test_a_call_needs_what_the_function_needs():
    text = """
    module {
      func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
        %0 = call @f(%x) : (tensor<64xf32>) -> tensor<64xf32>
        %1 = call @f(%0) : (tensor<64xf32>) -> tensor<64xf32>
        return %1 : tensor<64xf32>
      }
      func.func private @f(%x: tensor<64xf32>) -> tensor<64xf32> {
        %0 = stablehlo.reverse %x, dims = [0] : tensor<64xf32>
        %1 = stablehlo.reverse %0, dims = [0] : tensor<64xf32>
        return %1 : tensor<64xf32>
      }
    }
    """
    assert live(text) == 4
