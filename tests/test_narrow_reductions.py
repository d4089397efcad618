"""Reductions of f8E8M0FNU, which has neither a zero nor a kernel: numpy computes them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import weft
from weft import P

E8M0 = ml_dtypes.float8_e8m0fnu
TEXT = """
func.func @main(%x: tensor<8x4xf8E8M0FNU>, %init: tensor<f8E8M0FNU>) -> tensor<4xf8E8M0FNU> {
  %0 = stablehlo.reduce(%x init: %init) applies stablehlo.OP across dimensions = [0]
      : (tensor<8x4xf8E8M0FNU>, tensor<f8E8M0FNU>) -> tensor<4xf8E8M0FNU>
  return %0 : tensor<4xf8E8M0FNU>
}
"""
X = (2.0 ** np.arange(-16, 16)).reshape(8, 4).astype(E8M0)
EXPECTED = {
    "multiply": (2.0, 2.0 * 2.0 ** np.arange(-16, 16).reshape(8, 4).sum(0)),
    "maximum": (2.0**-100, 2.0 ** np.arange(12, 16)),
    "minimum": (2.0**100, 2.0 ** np.arange(-16, -12)),
    "add": (2.0**-100, 2.0 ** np.arange(12, 16)),  # the largest is what is left of the sum
}


@pytest.mark.filterwarnings("ignore:.*has no kernel of the llvm target")
@pytest.mark.parametrize("op", EXPECTED)
@pytest.mark.parametrize("target", ["llvm", "numpy"])
@pytest.mark.parametrize("mesh", [None, "data=4"])
def test_alone_and_split(op, target, mesh):
    init, expected = EXPECTED[op]
    more = {} if mesh is None else {"mesh": mesh, "in_shardings": (P("data"), P())}
    compiled = weft.compile(TEXT.replace("OP", op), target=target, **more)
    (made,) = compiled(X, np.array(init, E8M0))
    np.testing.assert_array_equal(np.asarray(made).astype("f8"), expected)
