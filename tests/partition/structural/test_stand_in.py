"""Ops whose sizes are operands: a static op stands in for them where all of these are known."""

from __future__ import annotations

import numpy as np
import pytest

from tests.partition.differential import check
from weft.capture import parse

SPLIT = '{sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}'
KNOWN = "%{0} = stablehlo.constant dense<{1}> : tensor<1xi32>"
OPS = {
    "pad": (
        "stablehlo.dynamic_pad %x, %v, %low, %high, %step : (tensor<8xf32>, tensor<f32>, "
        "tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<12xf32>",
        {"low": 3, "high": 1, "step": 0},
        12,
    ),
    "slice": (
        "stablehlo.real_dynamic_slice %x, %low, %high, %step : (tensor<8xf32>, tensor<1xi32>, "
        "tensor<1xi32>, tensor<1xi32>) -> tensor<3xf32>",
        {"low": 1, "high": 7, "step": 2},
        3,
    ),
}


@pytest.mark.parametrize("unknown", ["low", "high", "step", ""])
@pytest.mark.parametrize("name", OPS)
def test_sizes_that_are_known_and_not(name: str, unknown: str) -> None:
    op, sizes, length = OPS[name]
    known = [KNOWN.format(n, size) for n, size in sizes.items() if n != unknown]
    given = f", %{unknown}: tensor<1xi32>" if unknown else ""
    text = f"""sdy.mesh @mesh = <["x"=2]>
    func.func @main(%x: tensor<8xf32> {SPLIT}, %v: tensor<f32>{given}) -> tensor<{length}xf32> {{
      {" ".join(known)}
      %0 = {op}
      return %0 : tensor<{length}xf32>
    }}"""
    arrays = [np.arange(8, dtype=np.float32), np.float32(-1)]
    arrays += [np.array([sizes[unknown]], np.int32)] if unknown else []
    local = check(parse(text), arrays).local
    assert (op.split()[0] in local.text()) is bool(unknown)
