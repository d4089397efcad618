"""The schedule: a topological order that keeps meaning, effects and the memory that there is."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.ops.draw import seeds
from tests.optimize.local_programs import local_program
from tests.tolerance import assert_close
from weft.capture import parse
from weft.cost import Costs
from weft.evaluate import evaluate
from weft.ir.module import Module, Region
from weft.ir.verify import verify
from weft.machine import H100, Machine
from weft.ops.control import AsyncDone, AsyncStart
from weft.optimize import assign_streams, schedule, split_async
from weft.optimize.scheduling.flights import Flights
from weft.optimize.scheduling.lifetimes import live_bytes


def prepared(seed: int, steps: int) -> Module:
    return assign_streams(split_async(local_program(seed, steps).module))


def stalled(region: Region, costs: Costs) -> float:
    """How long a region takes if what is in flight travels beside the work."""
    flights = Flights.of(region.nodes, costs)
    if flights is None:
        return costs.totals.region(region)
    now, free, lands = 0.0, dict[str, float](), dict[int, float]()
    for index in range(len(region.nodes)):
        now += flights.seconds[index]
        if index in flights.done_of:
            stream = flights.stream[index]
            lands[index] = free[stream] = max(now, free.get(stream, 0.0)) + flights.travel[index]
        elif index in flights.start_of:
            now = max(now, lands[flights.start_of[index]])
    return now


@settings(max_examples=30)
@given(seeds, st.integers(1, 24), st.sampled_from((0, 1 << 40)))
@example(10043, 24, 1 << 40)  # a branch in a branch returns a value from far outside
def test_order_and_meaning_are_kept(seed: int, steps: int, memory: int):
    program = local_program(seed, steps)
    module = assign_streams(split_async(program.module))
    text = module.text()
    after = verify(schedule(module, H100.with_memory(memory)))  # a use before its node is refused
    assert module.text() == text
    assert Counter(n.op for n in after.nodes()) == Counter(n.op for n in module.nodes())
    arrays, count = program.arrays(seed), program.mesh.size
    expected = evaluate(program.module, *arrays, devices=count)
    for one, other in zip(evaluate(after, *arrays, devices=count), expected, strict=True):
        assert_close(one, other)


@settings(max_examples=40)
@given(seeds, st.integers(1, 24), st.sampled_from((0, 4096, 16384, 1 << 40)))
def test_memory_is_kept(seed: int, steps: int, memory: int):
    module = prepared(seed, steps)
    after = schedule(module, H100.with_memory(memory))
    assert live_bytes(after, "main") <= max(live_bytes(module, "main"), memory)


@settings(max_examples=40)
@given(seeds, st.integers(1, 24))
def test_same_again(seed: int, steps: int):
    module = prepared(seed, steps)
    assert schedule(module, H100).text() == schedule(parse(module.text()), H100).text()


LAYER = """
    %sN = "stablehlo.async_start"(%x) ({
    ^bb0(%aN: SMALL):
      %cN = "stablehlo.all_gather"(%aN) <{
        all_gather_dim = 0 : i64,
        replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>
      }> : (SMALL) -> HIGH
      stablehlo.return %cN : HIGH
    }) : (SMALL) -> !stablehlo.future<HIGH>
    %dN = "stablehlo.async_done"(%sN) : (!stablehlo.future<HIGH>) -> HIGH
    %mN = stablehlo.dot_general BEFORE, %dN, contracting_dims = [1] x [1] : (SMALL, HIGH) -> WIDE
    %yN = stablehlo.slice %mN [0:2048, 0:2048] : (WIDE) -> SMALL
"""


def layers(count: int) -> Module:
    """Layers that gather their weights right before they use them, as FSDP writes them."""
    lines = [
        LAYER.replace("BEFORE", f"%y{n - 1}" if n else "%x").replace("N", str(n))
        for n in range(count)
    ]
    text = (
        f"module {{ func.func @main(%x: SMALL) -> SMALL {{ {''.join(lines)}"
        f"return %y{count - 1} : SMALL }} }}"
    )
    for word, shape in (("SMALL", "2048x2048"), ("HIGH", "16384x2048"), ("WIDE", "2048x16384")):
        text = text.replace(word, f"tensor<{shape}xbf16>")
    return parse(text)


def order(module: Module) -> str:
    """Starts, dones and work as one letter each."""
    letters = {AsyncStart: "s", AsyncDone: "d"}
    nodes = module.function("main").body.nodes
    return "".join(letters.get(type(n.op), "w") for n in nodes)


def test_a_gather_travels_during_the_layer_before():
    module = layers(4)
    assert order(module) == "sdww" * 4
    after = schedule(module, H100)
    assert order(after) == "sdswwsdwwsdwwdww"
    assert _seconds(after) < 0.8 * _seconds(module)


def test_no_more_is_in_flight_than_is_needed():
    after = schedule(layers(12), H100)
    flying = most = 0
    for letter in order(after):
        flying += {"s": 1, "d": -1}.get(letter, 0)
        most = max(most, flying)
    assert most <= 3, "gathers are not all begun at once"


def test_without_memory_nothing_is_ahead():
    module = layers(4)
    small: Machine = H100.with_memory(live_bytes(module, "main"))
    assert order(schedule(module, small)) == order(module)


def _seconds(module: Module) -> float:
    return stalled(module.function("main").body, Costs(module, H100))


EFFECTS = """
module {
  func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
    %s = "stablehlo.async_start"(%x) ({
    ^bb0(%a: tensor<4xf32>):
      %c = "stablehlo.all_gather"(%a) <{
        all_gather_dim = 0 : i64, replica_groups = dense<[[0]]> : tensor<1x1xi64>
      }> : (tensor<4xf32>) -> tensor<4xf32>
      stablehlo.return %c : tensor<4xf32>
    }) : (tensor<4xf32>) -> !stablehlo.future<tensor<4xf32>>
    %d = "stablehlo.async_done"(%s) : (!stablehlo.future<tensor<4xf32>>) -> tensor<4xf32>
    stablehlo.custom_call @check.expect_eq(%d, %d) {has_side_effect = true}
      : (tensor<4xf32>, tensor<4xf32>) -> ()
    stablehlo.custom_call @check.expect_close(%x, %x) {has_side_effect = true}
      : (tensor<4xf32>, tensor<4xf32>) -> ()
    return %d : tensor<4xf32>
  }
}
"""


def test_effects_stay_in_order():
    after = schedule(parse(EFFECTS), H100)
    calls = [n.op for n in after.nodes() if n.op.name == "stablehlo.custom_call"]
    assert [getattr(op, "call_target_name", "") for op in calls] == [
        "check.expect_eq",
        "check.expect_close",
    ]


def test_nothing_in_flight_nothing_moved():
    module = local_program(1, 10).module
    assert schedule(module, H100) is module
