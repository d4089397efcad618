"""The same program gives the same numbers through `weft.compile`, `weft run` and JAX's plugin."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import weft
from tests.capture.doors import COLLECTIVES, DOORS, HOLES, SIX, SQUARE, expected_of, text_of
from tests.jax.door import run_on_weft
from weft.errors import WeftError

CHOSEN = np.where(SQUARE % 2 == 0, HOLES, 0)
PLACES = np.arange(8)[:, None] // 2 * 2 + np.arange(8)[None, :] // 4
RANKED = SQUARE[:, :-4:-1]
EXPECTED: dict[str, tuple[Any, ...]] = {
    "flags": (CHOSEN, CHOSEN),
    "complex flags": (CHOSEN,),
    "split flags": (CHOSEN,),
    "two meshes": (SQUARE @ SQUARE, np.sqrt(SQUARE) + SQUARE),
    "crossing meshes": (SIX @ SIX, np.sqrt(SIX) + SIX),
    "meshes inside": (SQUARE * 2,),
    "device numbers": ((SQUARE + 1 + PLACES) * 2,),
    "top k": (RANKED, np.broadcast_to([7, 6, 5], RANKED.shape)),
    "by hand": (np.sqrt(SQUARE) + 10,),
    "tokens": (SQUARE * 8 + 4,),
    "two orders": (expected_of("two orders"),),
} | {name: (expected_of(name),) for name in COLLECTIVES}


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """What every door gives for every program."""
    said: dict[str, dict[str, Any]] = json.loads(
        run_on_weft("from tests.capture.doors import main; main()").splitlines()[-1]
    )
    return said


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", EXPECTED)
def test_numbers(found: dict[str, dict[str, Any]], name: str, door: str) -> None:
    given = found[name][door]
    assert not isinstance(given, str), given
    assert len(given) == len(EXPECTED[name])
    for one, expected in zip(given, EXPECTED[name], strict=True):
        np.testing.assert_allclose(np.array(one), expected, rtol=1e-5)
    assert repr(given) == repr(found[name]["plugin"])  # to the bit; NaN is not equal to itself


def test_every_program_has_numbers(found: dict[str, dict[str, Any]]) -> None:
    assert {*found} == {*EXPECTED, "device ids"}


@pytest.mark.parametrize("door", DOORS)
def test_device_ids_outside_manual_computations_are_refused(
    found: dict[str, dict[str, Any]], door: str
) -> None:
    told = found["device ids"][door]
    assert "stablehlo.partition_id: there is one number for each device" in told


# What devices send each other, where somebody wrote that they do.
SENT = {
    "all_gather": ["stablehlo.all_gather"],
    "all_slice": [],
    "all_to_all": ["stablehlo.all_to_all"],
    "collective_permute": ["weft.collective_permute"],
    "replicated_to_unreduced": [],
    "sharded_to_unreduced": ["stablehlo.all_gather"],  # the result is reduced when it is given
    "all_reduce": ["stablehlo.all_reduce"],
    "reduce_scatter": ["stablehlo.reduce_scatter"],
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_do_what_they_say(name: str) -> None:
    made = weft.compile(text_of(name), level=0)
    assert [sent.name for sent in made.collectives()] == SENT[name]
    _, op = COLLECTIVES[name]
    said = op.partition("out_sharding=<@mesh, ")[2].partition(", unreduced")[0].rstrip(">")
    (result,) = made(SQUARE, SQUARE)
    assert f", {said}>" in str(result.sharding)


def test_functions_that_are_gone_are_named() -> None:
    text = """func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.custom_call @CustomSPMDPartitioning(%a) {backend_config = "7"}
        : (tensor<8xf32>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }"""
    with pytest.raises(WeftError, match="custom_partitioning callback is not registered"):
        weft.compile(weft.parse(text))
