"""Examples of transforms and decompositions, on matrices that are well conditioned."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dims, dtypes, seeds, shapes
from tests.ops.example import Example
from weft.ir.op import Op
from weft.ir.types import DTYPES, Array, DType
from weft.ops.linalg import Cholesky, Fft, TriangularSolve, rfft_length

FLOATS = ("f32", "f64", "bf16", "complex<f32>", "complex<f64>")


@composite
def fft(draw: DrawFn) -> Example:
    kind = draw(st.sampled_from(("FFT", "IFFT", "RFFT", "IRFFT")))
    batch, lengths = draw(shapes(0, 2)), draw(shapes(1, 3))
    name = draw(st.sampled_from(("f32", "f64")))
    dtype = DTYPES[name if kind == "RFFT" else f"complex<{name}>"]
    given = (*lengths[:-1], rfft_length(lengths[-1])) if kind == "IRFFT" else lengths
    return Example(Fft(kind, lengths), (array((*batch, *given), dtype, draw(seeds)),))


def triangles(batch: tuple[int, ...], size: int, dtype: DType, seed: int) -> Array:
    """Full matrices whose diagonals are large."""
    matrix = array((*batch, size, size), dtype, seed).astype(
        np.complex128 if dtype.is_complex else np.float64
    )
    diagonal = np.arange(size)
    matrix[..., diagonal, diagonal] = 4 + diagonal % 3
    return matrix.astype(dtype.numpy)


@composite
def cholesky(draw: DrawFn) -> Example:
    batch, size, dtype = draw(shapes(0, 2)), draw(dims), draw(dtypes(FLOATS))
    factor = np.tril(triangles(batch, size, dtype, draw(seeds)))
    wide = factor.astype(np.complex128 if dtype.is_complex else np.float64)
    matrix = wide @ np.conj(np.swapaxes(wide, -1, -2))
    return Example(Cholesky(draw(st.booleans())), (matrix.astype(dtype.numpy),))


@composite
def triangular_solve(draw: DrawFn) -> Example:
    batch, size, other = draw(shapes(0, 2)), draw(dims), draw(dims)
    dtype = draw(dtypes(FLOATS))
    left = draw(st.booleans())
    given = (*batch, size, other) if left else (*batch, other, size)
    op = TriangularSolve(
        left,
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from(("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"))),
    )
    arrays = (triangles(batch, size, dtype, draw(seeds)), array(given, dtype, draw(seeds)))
    return Example(op, arrays)


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    Fft: fft(),
    Cholesky: cholesky(),
    TriangularSolve: triangular_solve(),
}
