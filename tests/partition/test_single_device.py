"""Programs for one device: which are left as they are."""

from __future__ import annotations

import pytest

from weft.capture import parse
from weft.partition.single_device import is_single_device

ADD = """func.func @main(%0: tensor<{0}xf32> {1}) -> tensor<{0}xf32> {{
  %1 = stablehlo.add %0, %0 : tensor<{0}xf32>
  return %1 : tensor<{0}xf32>
}}"""
SPLIT = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ADD.format(8, ""), True),
        (ADD.format(1, ""), True),
        (ADD.format(0, ""), False),  # what is empty becomes a constant
        ('sdy.mesh @mesh = <["x"=2]>\n' + ADD.format(8, ""), False),
        ('sdy.mesh @mesh = <["x"=2]>\n' + ADD.format(8, SPLIT), False),
        ("sdy.mesh @mesh = <[]>\n" + ADD.format(8, ""), True),
    ],
)
def test_what_is_left_as_it_is(text: str, expected: bool) -> None:
    assert is_single_device(parse(text)) is expected
