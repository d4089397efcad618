"""Tridiagonal systems, side by side in lanes, beside the reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emit.llvm.single.lone_nodes import check_alone, compiled, lone_kernel, node_of
from weft.ir.types import Array, type_of
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.custom_calls.declaration import config_text
from weft.ops.numerics.tridiagonal import tridiagonal_solve


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize(
    ("shape", "perturb"),
    [((9, 2), 0), ((3, 17, 1), 0), ((2, 3, 5, 7), 0), ((1, 1), 0), ((3, 17, 2), 1), ((2, 1, 1), 1)],
)
def test_systems(dtype: str, shape: tuple[int, ...], perturb: int) -> None:
    random = np.random.default_rng(sum(shape))

    def numbers(*sizes: int) -> Array:
        made = random.standard_normal((2, *sizes))
        return (made[0] + 1j * made[1] if dtype[0] == "c" else made[0]).astype(dtype)

    # Of several the second is zero or singular; what is outside of the matrices is not read.
    diagonals = [numbers(*shape[:-1]) for _ in range(3)]
    if len(shape) > 2:
        for part in diagonals:
            part[1] = 0
        if perturb:
            diagonals[1][1, ..., 0] = 8
    diagonals[0][..., 0] = diagonals[2][..., -1] = np.nan
    operands = [*diagonals, numbers(*shape)]
    op = CustomCall(
        "weft.tridiagonal_solve",
        (type_of(operands[3]),),
        backend_config=config_text(perturb_singular=perturb),
    )
    (found,) = compiled(lone_kernel(node_of(op, *operands)))(*operands)
    clean = [np.nan_to_num(part) for part in diagonals]
    near(found, tridiagonal_solve(*clean, operands[3], perturb=bool(perturb)))
    if perturb:
        assert np.isfinite(found).all()
    elif len(shape) > 2:
        assert np.isnan(found[1]).all() and not np.isnan(found[0]).any()
    check_alone(op, *clean, operands[3], masks=[0, 1, 0, 1], sizes=[2], compare=near)


def near(actual: Array, expected: Array) -> None:
    """Fail unless two arrays are equal to the rounding of badly conditioned systems."""
    unit = float(np.finfo(actual.dtype).eps)
    np.testing.assert_allclose(actual, expected, rtol=2000 * unit, atol=200 * unit)
