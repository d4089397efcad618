"""The memory of a device: what is allocated for a program, and what is in use when most is."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import weft
from tests.ops.draw import seeds
from tests.optimize.local_programs import local_program
from weft.capture import parse
from weft.emit.numpy import NumpyKernels
from weft.errors import WeftError
from weft.executable.executable import Executable
from weft.executable.memory import MemoryUse, live_ranges_of
from weft.ir.attrs import Attrs
from weft.ir.module import Module
from weft.machine import HOST
from weft.optimize import assign_streams, schedule, split_async
from weft.targets import target_named
from weft.tile import tile


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


def tiled(module: Module, target: str | None = "llvm", **options) -> Executable:
    """A program whose memory is planned."""
    chosen = target_named(target, runs=False)
    return tile(module, host=NumpyKernels(), target=chosen, **options)


def check(made: Executable) -> MemoryUse:
    """Everything that must hold of a plan, and of what is said about it."""
    plan, stacks, lives = made.plan, made.tiled.stacks, live_ranges_of(made.tiled, made.plan)
    held = [(lives.of(slot), at, stacks[slot].nbytes) for slot, at in plan.places.items()]
    for n, (one, at, size) in enumerate(held):
        assert at >= 0 and at + size <= plan.arena
        for other, low, more in held[n + 1 :]:
            # Where one ends the other may begin, written over it.
            apart = one.end <= other.begin + 1 or other.end <= one.begin + 1
            assert apart or at + size <= low or low + more <= at, (one, other)
    use = made.memory()
    assert 0 <= use.needed <= use.peak and use.aliased >= 0
    assert use.needed == sum(buffer.size for buffer in use.at_peak())
    assert use.temporaries == use.arena + use.others
    if made.tiled.world.count == 1:  # what one device holds is what all do
        for name in ("arguments", "results", "arena", "others"):
            assert getattr(use, name) == getattr(plan.memory, name), name
    return use


@settings(max_examples=25)
@given(seeds, st.integers(1, 20), st.sampled_from(("llvm", "numpy")))
@example(10643, 24, "llvm")  # a loop carries what a branch inside it returns from outside
@example(10744, 25, "numpy")
def test_values_that_are_in_use_at_once_have_places_of_their_own(seed, steps, target):
    module = donated(local_program(seed, steps).module, seed)
    together = check(tiled(module, target))
    alone = check(tiled(module, target, stacked=()))
    assert (alone.arguments, alone.results) == (together.arguments, together.results)
    check(tiled(schedule(assign_streams(split_async(module))), target))


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


def counts(text: str) -> tuple[int, int, int]:
    """Peak, temporaries and shared bytes of a program, in tensors of 256 bytes."""
    use = check(tiled(parse(text)))
    assert use.peak % 256 == 0
    return use.peak // 256, use.temporaries // 256, use.aliased // 256


def test_elementwise_chains_are_one_kernel():
    assert counts(CHAIN) == (2, 0, 0)


def test_a_donated_argument_is_written_over():
    for attribute in ("tf.aliasing_output = 0 : i32", "jax.buffer_donor = true"):
        text = CHAIN.replace("tensor<64xf32>)", f"tensor<64xf32> {{{attribute}}})", 1)
        assert counts(text) == (1, 0, 1)


def test_a_donated_argument_that_is_read_to_the_end_is_kept():
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
    assert counts(text) == (3, 1, 0)


def test_an_argument_that_is_returned_takes_no_more():
    text = """
    module {
      func.func @main(%x: tensor<64xf32>) -> (tensor<64xf32>, tensor<64xf32>) {
        return %x, %x : tensor<64xf32>, tensor<64xf32>
      }
    }
    """
    assert counts(text) == (1, 0, 2)


LOOP = """
module {
  func.func @main(%x: tensor<131072xf32>, %n: tensor<i32>) -> tensor<131072xf32> {
    %y = stablehlo.sine %x : tensor<131072xf32>
    %out:2 = "stablehlo.while"(%n, %y) ({
    ^bb0(%i: tensor<i32>, %z: tensor<131072xf32>):
      %end = stablehlo.constant dense<10> : tensor<i32>
      %more = stablehlo.compare LT, %i, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %more : tensor<i1>
    }, {
    ^bb0(%i: tensor<i32>, %z: tensor<131072xf32>):
      BODY
      stablehlo.return %i, %w : tensor<i32>, tensor<131072xf32>
    }) : (tensor<i32>, tensor<131072xf32>) -> (tensor<i32>, tensor<131072xf32>)
    return %out#1 : tensor<131072xf32>
  }
}
"""


@pytest.mark.parametrize(
    ("body", "tensors"),
    [
        # the argument, what the loop begins with, and the result, which is written over itself
        ("%w = stablehlo.add %z, %z : tensor<131072xf32>", 3),
        # reversed, it cannot be in its own place
        ("%w = stablehlo.reverse %z, dims = [0] : tensor<131072xf32>", 4),
        # what the body reads from outside is not its own to overwrite
        ("%w = stablehlo.add %x, %z : tensor<131072xf32>", 3),
    ],
)
def test_loops_carry_in_place(body: str, tensors: int):
    use = check(tiled(parse(LOOP.replace("BODY", body))))
    assert round(use.peak / 524288) == tensors


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
    assert counts(text) == (3, 1, 0)
    assert check(tiled(parse(text), function="f")).peak == 2 * 256


def test_a_program_that_fits_not_says_what_is_large():
    module = parse(CHAIN)
    use = tiled(module).memory()
    assert use.fits(HOST.with_memory(512)) is use
    with pytest.raises(WeftError) as caught:
        use.fits(HOST.with_memory(300))
    shown = str(caught.value)
    assert "'main' needs 512 B on every device, but host has 300 B" in shown
    assert "256 B  %arg0 : tensor<64xf32>" in shown
    assert "-:7" in shown, "the line of what is large"
    assert caught.value.help.startswith("split the large values")


def test_a_function_that_calls_itself_is_refused():
    text = CHAIN.replace("%0 = stablehlo.sine %x", "%0 = call @main(%x)").replace(
        "%0 = call @main(%x) : tensor<64xf32>",
        "%0 = call @main(%x) : (tensor<64xf32>) -> tensor<64xf32>",
    )
    with pytest.raises(WeftError, match="calls itself"):
        tiled(parse(text))


def test_a_saved_program_says_the_same(tmp_path):
    made = weft.compile(parse(CHAIN))
    made.save(tmp_path / "chain.weft")
    assert str(weft.load(tmp_path / "chain.weft").memory()) == str(made.memory())


def test_constants_and_what_shares_their_memory():
    text = """
    module {
      func.func @main(%x: tensor<64xf32>) -> (tensor<64xi32>, tensor<64xi32>, tensor<64xf32>) {
        %0 = stablehlo.constant dense<"0xHEX"> : tensor<64xi32>
        %1 = stablehlo.negate %x : tensor<64xf32>
        return %0, %0, %1 : tensor<64xi32>, tensor<64xi32>, tensor<64xf32>
      }
    }
    """
    use = check(tiled(parse(text.replace("HEX", bytes(range(256)).hex().upper()))))
    assert (use.arguments, use.results, use.constants, use.aliased) == (256, 768, 256, 512)
    assert use.peak == use.needed == 768


def test_booleans_take_a_byte():
    text = """
    module {
      func.func @main(%x: tensor<100xi1>) -> tensor<100xi1> {
        %0 = stablehlo.not %x : tensor<100xi1>
        return %0 : tensor<100xi1>
      }
    }
    """
    use = check(tiled(parse(text)))
    assert use.arguments == use.results == 100
    assert use.peak == 200
