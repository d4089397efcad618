"""Which loops are so short that their caller's thread runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft

LOOP = """
func.func @main(%a: tensor<{n}x{n}xf32>, %x: tensor<{n}xf32>, %m: tensor<i32>) -> tensor<{n}xf32> {{
  %o = stablehlo.constant dense<{rounds}> : tensor<i32>
  %0 = stablehlo.constant dense<0> : tensor<i32>
  %1 = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%i = %0, %y = %x) : tensor<i32>, tensor<{n}xf32>
  cond {{ %k = stablehlo.constant dense<{rounds}> : tensor<i32>
         %c = stablehlo.compare LT, %i, {limit} : (tensor<i32>, tensor<i32>) -> tensor<i1>
         stablehlo.return %c : tensor<i1> }}
  do {{ %j = stablehlo.add %i, %1 : tensor<i32>
       %z = stablehlo.dot_general %a, %y, contracting_dims = [1] x [0]
         : (tensor<{n}x{n}xf32>, tensor<{n}xf32>) -> tensor<{n}xf32>
       stablehlo.return %j, %z : tensor<i32>, tensor<{n}xf32> }}
  return %r#1 : tensor<{n}xf32>
}}
"""


@pytest.mark.parametrize(
    ("n", "rounds", "limit", "expected"),
    [
        (30, 40, "%k", True),  # a flow
        (700, 10, "%k", True),  # a loop of launches
        (700, 10, "%o", True),  # a constant of outside
        (700, 100, "%k", False),
        (700, 100, "%o", False),
        (700, 10, "%m", False),  # of unknown length
    ],
)
def test_brief_loops(n: int, rounds: int, limit: str, expected: bool):
    program = weft.compile(LOOP.format(n=n, rounds=rounds, limit=limit))
    assert program.program.local.is_brief is expected


def test_a_loaded_program_is_as_brief_as_the_compiled_one(tmp_path: Path):
    """Also one that was loaded before, whose kernels are opaque."""
    for number, rounds in enumerate((40, 100_000)):  # flows
        program = weft.compile(LOOP.format(n=30, rounds=rounds, limit="%k"))
        program.save(tmp_path / f"{number}.weft", code=True)
        for _ in range(2):
            loaded = weft.load(tmp_path / f"{number}.weft")
            assert loaded.program.is_brief is program.program.local.is_brief is (number == 0)
