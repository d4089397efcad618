"""Streams: annotations first, then a stream for each domain, as far as there are streams."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops.draw import seeds
from tests.optimize.local_programs import local_program
from weft.capture import parse
from weft.cost import groups_of
from weft.errors import WeftError
from weft.ir.module import Module
from weft.ir.verify import verify
from weft.ops.control import AsyncStart, stream_of
from weft.optimize import assign_streams, split_async


def streams(module: Module) -> list[tuple[object, str | None]]:
    starts = [n for n in module.nodes() if isinstance(n.op, AsyncStart)]
    return [(groups_of(n.regions[0].nodes[0].op), stream_of(n.attrs)) for n in starts]


@settings(max_examples=25)
@given(seeds, st.integers(1, 20), st.integers(1, 3))
def test_a_domain_has_one_stream(seed: int, steps: int, count: int):
    module = split_async(local_program(seed, steps).module)
    after = verify(assign_streams(module, communication_streams=count))
    assert assign_streams(after, communication_streams=count) is after
    found: dict[object, set[str | None]] = {}
    for domain, stream in streams(after):
        found.setdefault(domain, set()).add(stream)
    assert all(len(used) == 1 for used in found.values())
    used = {stream for each in found.values() for stream in each}
    assert used == {f"communication.{n}" for n in range(min(count, len(found)))}


SLICES = """
module {
  func.func @main(%x: tensor<8xf32>) -> tensor<4xf32> {
BODY
    return %d0 : tensor<4xf32>
  }
}
"""
SLICE = """
    %sN = "stablehlo.async_start"(%x) ({
    ^bb0(%aN: tensor<8xf32>):
      %cN = stablehlo.slice %aN [0:4] : (tensor<8xf32>) -> tensor<4xf32>
      stablehlo.return %cN : tensor<4xf32>
    }) : (tensor<8xf32>) -> !stablehlo.future<tensor<4xf32>>
    %dN = "stablehlo.async_done"(%sN) : (!stablehlo.future<tensor<4xf32>>) -> tensor<4xf32>
"""


def test_other_work_takes_the_compute_streams_in_turn():
    body = "".join(SLICE.replace("N", str(n)) for n in range(6))
    module = assign_streams(parse(SLICES.replace("BODY", body)), compute_streams=4)
    found = [stream_of(n.attrs) for n in module.nodes() if isinstance(n.op, AsyncStart)]
    assert found == [f"compute.{n}" for n in (0, 1, 2, 3, 0, 1)]


@pytest.mark.parametrize("given_", [{"compute_streams": 0}, {"communication_streams": 0}])
def test_no_streams_at_all_are_refused(given_: dict[str, int]):
    with pytest.raises(WeftError, match="0 (compute|communication) streams"):
        assign_streams(local_program(0, 1).module, **given_)
