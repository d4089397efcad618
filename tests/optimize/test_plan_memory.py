"""The memory plan: nothing is overwritten that is still read, and no byte is counted twice."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.ops.draw import seeds
from tests.optimize.local_programs import local_program
from tests.optimize.memory_oracle import check_plan
from weft.array.place_buffers import Span, aligned, most_alive, place
from weft.capture import parse
from weft.errors import WeftError
from weft.ir.attrs import Attrs
from weft.ir.module import Module
from weft.machine import HOST
from weft.optimize import assign_streams, plan_memory, schedule, split_async
from weft.optimize.lifetimes import last_uses
from weft.optimize.memory_plan import MemoryPlan


def donated(module: Module, seed: int) -> Module:
    """The module with some arguments donated, in both of JAX's ways."""
    pick = random.Random(seed)
    main = module.function("main")
    free = list(range(len(main.body.results)))
    attrs: list[Attrs] = []
    for value in main.body.args:
        fitting = [n for n in free if main.body.results[n].type is value.type]
        match pick.randint(0, 2):
            case 0 if fitting:
                attrs.append((("tf.aliasing_output", f"{fitting[0]} : i32"),))
                free.remove(fitting[0])
            case 1:
                attrs.append((("jax.buffer_donor", "true"),))
            case _:
                attrs.append(())
    return module.with_functions(
        {**module.functions, "main": replace(main, arg_attrs=tuple(attrs))}
    )


def check(module: Module) -> MemoryPlan:
    """Everything that must hold of a plan."""
    plan = plan_memory(module)
    check_plan(module, plan)
    buffers = plan.buffers
    for n, one in enumerate(buffers):
        assert one.offset + one.size <= plan.peak
        for other in buffers[n + 1 :]:
            apart = one.end < other.begin or other.end < one.begin
            beside = (
                one.offset + one.size <= other.offset or other.offset + other.size <= one.offset
            )
            assert apart or beside, (one, other)
    assert plan.needed == most_alive([b.span for b in buffers]) <= plan.peak
    points = range(-1, len(plan.nodes) + 1)
    alive = [sum(aligned(b.size) for b in buffers if b.begin <= at <= b.end) for at in points]
    assert plan.needed == max(alive)
    assert plan.temporaries >= 0 and plan.aliased >= 0
    return plan


@settings(max_examples=60)
@given(seeds, st.integers(1, 20))
@example(10643, 24)  # a loop carries what a branch inside it returns from outside
@example(10744, 25)
def test_no_value_is_overwritten_while_it_is_read(seed: int, steps: int):
    module = donated(local_program(seed, steps).module, seed)
    check(module)
    check(schedule(assign_streams(split_async(module))))


def test_a_wrong_plan_is_found():
    module = parse(CHAIN)
    plan = plan_memory(module)
    low = tuple(replace(b, offset=0) for b in plan.buffers)
    with pytest.raises(AssertionError):
        check_plan(module, replace(plan, buffers=low))


@given(
    st.lists(st.tuples(st.integers(0, 500), st.integers(-1, 20), st.integers(0, 8)), max_size=30)
)
def test_places_never_overlap(drawn: list[tuple[int, int, int]]):
    spans = [Span(size, begin, begin + more) for size, begin, more in drawn]
    offsets, height = place(spans)
    assert height >= most_alive(spans)
    for n, (one, low) in enumerate(zip(spans, offsets, strict=True)):
        assert low % 64 == 0 and low + one.size <= height
        for other, lower in list(zip(spans, offsets, strict=True))[n + 1 :]:
            if one.begin <= other.end and other.begin <= one.end:
                assert low + one.size <= lower or lower + other.size <= low


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2)), max_size=5))
def test_small_programs_are_placed_nearly_as_low_as_can_be(drawn: list[tuple[int, int, int]]):
    spans = [Span(64 * size, begin, begin + more) for size, begin, more in drawn]
    _, height = place(spans)
    assert height <= 1.34 * lowest(spans, most_alive(spans))


def lowest(spans: list[Span], least: int) -> int:
    """The lowest height of all placements, by trying all of them."""
    height = least
    while not _can(spans, (), height):
        height += 64
    return max(height, 1)


def _can(spans: list[Span], offsets: tuple[int, ...], height: int) -> bool:
    if len(offsets) == len(spans):
        return True
    span = spans[len(offsets)]
    for offset in range(0, height - span.size + 1, 64):
        free = all(
            offset + span.size <= low
            or low + other.size <= offset
            or span.end < other.begin
            or other.end < span.begin
            for other, low in zip(spans, offsets, strict=False)
        )
        if free and _can(spans, (*offsets, offset), height):
            return True
    return False


# What each rule is worth, on programs of one tensor size: 64 floats, 256 bytes.

CHAIN = """
module {
  func.func @main(%x: tensor<64xf32>) -> tensor<64xf32> {
    %0 = stablehlo.sine %x : tensor<64xf32>
    %1 = stablehlo.reshape %0 : (tensor<64xf32>) -> tensor<8x8xf32>
    %2 = stablehlo.negate %1 : tensor<8x8xf32>
    %3 = stablehlo.add %2, %2 : tensor<8x8xf32>
    %4 = stablehlo.reshape %3 : (tensor<8x8xf32>) -> tensor<64xf32>
    return %4 : tensor<64xf32>
  }
}
"""


def counts(text: str) -> tuple[int, int, int, int]:
    """Peak, temporaries, aliased and copies of a program, in tensors of 256 bytes."""
    plan = check(parse(text))
    assert plan.peak % 256 == 0
    return plan.peak // 256, plan.temporaries // 256, plan.aliased // 256, len(plan.copies)


def test_elementwise_chains_stay_in_one_buffer():
    assert counts(CHAIN) == (2, 0, 0, 0)


def test_a_donated_argument_is_written_over():
    for attribute in ("tf.aliasing_output = 0 : i32", "jax.buffer_donor = true"):
        text = CHAIN.replace("tensor<64xf32>)", f"tensor<64xf32> {{{attribute}}})", 1)
        assert counts(text) == (1, 0, 1, 0)


def test_a_donated_argument_that_is_read_to_the_end_costs_a_copy():
    text = """
    module {
      func.func @main(%x: tensor<64xf32> {tf.aliasing_output = 0 : i32}) -> tensor<64xf32> {
        %0 = stablehlo.sine %x : tensor<64xf32>
        %1 = stablehlo.reverse %x, dims = [0] : tensor<64xf32>
        stablehlo.custom_call @check.expect_eq(%1, %x) {has_side_effect = true}
          : (tensor<64xf32>, tensor<64xf32>) -> ()
        return %0 : tensor<64xf32>
      }
    }
    """
    peak, _, aliased, copies = counts(text)
    assert (peak, aliased, copies) == (3, 0, 1)


def test_an_argument_that_is_returned_is_copied():
    text = """
    module {
      func.func @main(%x: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
        return %x, %x : tensor<64xf32>, tensor<64xf32>
      }
    }
    """
    assert counts(text) == (3, 0, 0, 2)


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


LOOP = """
module {
  func.func @main(%x: tensor<4096xf32>, %n: tensor<i32>) -> tensor<4096xf32> {
    %y = stablehlo.sine %x : tensor<4096xf32>
    %out:2 = "stablehlo.while"(%n, %y) ({
    ^bb0(%i: tensor<i32>, %z: tensor<4096xf32>):
      %end = stablehlo.constant dense<10> : tensor<i32>
      %more = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }, {
    ^bb0(%i: tensor<i32>, %z: tensor<4096xf32>):
      BODY
      stablehlo.return %i, %w : tensor<i32>, tensor<4096xf32>
    }) : (tensor<i32>, tensor<4096xf32>) -> (tensor<i32>, tensor<4096xf32>)
    return %out#1 : tensor<4096xf32>
  }
}
"""


@pytest.mark.parametrize(
    ("body", "tensors"),
    [
        # the carried tensor is one buffer, from before the loop to the result
        ("%w = stablehlo.add %z, %z : tensor<4096xf32>", 2),
        # reversed, it cannot be in its own place
        ("%w = stablehlo.reverse %z, dims = [0] : tensor<4096xf32>", 3),
        # what the body reads from outside is not its own to overwrite
        ("%w = stablehlo.add %x, %z : tensor<4096xf32>", 2),
    ],
)
def test_loops_carry_in_place(body: str, tensors: int):
    plan = check(parse(LOOP.replace("BODY", body)))
    assert round(plan.peak / 16384) == tensors


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
    plan = check(parse(text))
    assert plan.peak == 64 + 64 + 256
    assert (plan.arguments, plan.results, plan.temporaries) == (68, 256, 0)


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
    assert counts(text)[0] == 4  # x, what travels, where it arrives, and the cosine


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
    assert counts(text)[0] == 4
    assert plan_memory(parse(text), "f").peak == 3 * 256


def test_a_program_that_fits_not_says_what_is_large():
    module = parse(CHAIN)
    plan = plan_memory(module)
    assert plan.fits(HOST.with_memory(512)) is plan
    with pytest.raises(WeftError) as caught:
        plan.fits(HOST.with_memory(300))
    shown = str(caught.value)
    assert "'main' needs 512 B on every device, but host has 300 B" in shown
    assert "256 B  %arg0 : tensor<64xf32>" in shown
    assert "-:4" in shown, "the line of what is large"
    assert caught.value.help.startswith("split the large values")


def test_the_entry_is_main_or_the_only_public_function():
    text = CHAIN.replace("@main", "@step")
    assert plan_memory(parse(text)).function.name == "step"
    two = text.rstrip().removesuffix("}") + CHAIN.split("{", 1)[1].replace("@main", "@other")
    with pytest.raises(WeftError, match="no function 'main'"):
        plan_memory(parse(two))


def test_a_function_that_calls_itself_is_refused():
    text = CHAIN.replace("%0 = stablehlo.sine %x", "%0 = call @main(%x)").replace(
        "%0 = call @main(%x) : tensor<64xf32>",
        "%0 = call @main(%x) : (tensor<64xf32>) -> tensor<64xf32>",
    )
    with pytest.raises(WeftError, match="calls itself"):
        plan_memory(parse(text))


def test_booleans_take_a_byte():
    text = """
    module {
      func.func @main(%x: tensor<100xi1>) -> tensor<100xi1> {
        %0 = stablehlo.not %x : tensor<100xi1>
        return %0 : tensor<100xi1>
      }
    }
    """
    plan = check(parse(text))
    assert plan.arguments == plan.results == 100
    assert np.isclose(plan.peak, 256)
