"""Products and factorizations of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def weight_norm_backward(grad: Any, v: Any, g: Any, norms: Any, dim: int) -> tuple[Any, Any]:
    """The gradients of a direction and of a magnitude, whose norm runs over all dims but one."""
    others = [d for d in range(v.dim()) if d != dim]
    norms = norms.to(v.dtype)
    along = (grad * v).sum(others, keepdim=True)
    return (g / norms) * (grad - v * (along / (norms * norms))), along / norms


def trilinear(
    x: Any,
    y: Any,
    z: Any,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Any:
    """The product of three tensors, which lack some dims each, summed over dims."""
    import torch

    rank = x.dim() + len(expand1)
    letters = "abcdefghijklmnop"[:rank]

    def named(missing: Sequence[int]) -> str:
        return "".join(letter for dim, letter in enumerate(letters) if dim not in missing)

    absent = [d for d in range(rank) if d in expand1 and d in expand2 and d in expand3]
    summed = [*sumdim, *absent]
    product = torch.einsum(
        f"{named(expand1)},{named(expand2)},{named(expand3)}->{named(summed)}", x, y, z
    )
    for dim in (d for d in absent if d not in sumdim):
        product = product.unsqueeze(dim)
    return product


def solve(
    a: Any, b: Any, *, left: bool = True, check_errors: bool = False
) -> tuple[Any, Any, Any, Any]:
    """The solution of linear systems, and the factors that it came from."""
    import torch

    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    factors, pivots, info = torch.linalg.lu_factor_ex(a)
    right = b.unsqueeze(-1) if is_vector else b
    made = torch.linalg.lu_solve(factors, pivots, right, left=left)
    return made.squeeze(-1) if is_vector else made, factors, pivots, info


def inverse(a: Any, *, check_errors: bool = False) -> tuple[Any, Any]:
    """The inverses of matrices."""
    import torch

    made, _, _, info = solve(a, torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape))
    return made, info


def determinant(a: Any) -> tuple[Any, Any, Any]:
    """Determinants, by their factors."""
    import torch

    factors, pivots, _ = torch.linalg.lu_factor_ex(a)
    return _parity(pivots) * factors.diagonal(dim1=-2, dim2=-1).prod(-1), factors, pivots


def log_determinant(a: Any) -> tuple[Any, Any, Any, Any]:
    """Signs and logarithms of determinants."""
    import torch

    factors, pivots, _ = torch.linalg.lu_factor_ex(a)
    diagonal = factors.diagonal(dim1=-2, dim2=-1)
    sign = _parity(pivots) * diagonal.sgn().prod(-1)
    return sign, diagonal.abs().log().sum(-1), factors, pivots


def _parity(pivots: Any) -> Any:
    """1 for an even number of row exchanges, -1 for an odd one; pivots count from 1."""
    import torch

    moved = pivots != torch.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    return 1 - 2 * (moved.to(torch.int64).sum(-1) % 2)


def cholesky_solve(b: Any, factor: Any, upper: bool = False) -> Any:
    """The solution of systems whose matrices have these Cholesky factors."""
    import torch

    lower = factor.mH if upper else factor
    half = torch.linalg.solve_triangular(lower, b, upper=False)
    return torch.linalg.solve_triangular(lower.mH, half, upper=True)


def cholesky_inverse(factor: Any, upper: bool = False) -> Any:
    """The inverses of matrices that have these Cholesky factors."""
    import torch

    return cholesky_solve(
        torch.eye(factor.shape[-1], dtype=factor.dtype).expand(factor.shape), factor, upper
    )


def pseudo_inverse(a: Any, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    """The pseudo-inverses of matrices, by their singular values above a limit."""
    import torch

    if not a.numel():
        return a.mH
    if hermitian:
        signed, left = torch.linalg.eigh(a)
        values, signs = signed.abs(), signed.sign()
        right = left.mH * signs[..., None].to(a.dtype)
    else:
        left, values, right = torch.linalg.svd(a, full_matrices=False)
    relative = max(a.shape[-2:]) * torch.finfo(a.dtype).eps
    if rtol is not None:
        relative = rtol[..., None] if rtol.dim() else rtol
    elif atol is not None:
        relative = torch.where(atol > 0, 0.0, relative)[..., None]
    limit = values.amax(-1, keepdim=True) * relative
    if atol is not None:
        limit = torch.maximum(limit, atol[..., None].to(limit.dtype))
    kept = torch.where(values > limit, 1 / values, 0).to(a.dtype)
    return (right.mH * kept[..., None, :]) @ left.mH


def cholesky(a: Any, upper: bool = False) -> Any:
    """The Cholesky factors, by the older name."""
    import torch

    return torch.linalg.cholesky(a, upper=upper)


def triangular_solve(
    b: Any, a: Any, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Any, Any]:
    """The solution of triangular systems, and the matrices, by the older name."""
    import torch

    # Only the triangle that is named is read, also of the matrix that is returned.
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    left, is_upper = (a.mT, not upper) if transpose else (a, upper)
    made = torch.linalg.solve_triangular(left, b, upper=is_upper, unitriangular=unitriangular)
    return made, a.clone()


def ormqr(a: Any, tau: Any, other: Any, left: bool = True, transpose: bool = False) -> Any:
    """The product with the whole orthogonal matrix of Householder's reflections."""
    import torch

    rows = a.shape[-2]
    whole = torch.nn.functional.pad(a[..., : tau.shape[-1]], (0, rows - tau.shape[-1]))
    rotation = torch.linalg.householder_product(whole, tau)
    rotation = rotation.mH if transpose else rotation
    return rotation @ other if left else other @ rotation


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "_linalg_det": determinant,
    "_linalg_slogdet": log_determinant,
    "_linalg_solve_ex": solve,
    "_trilinear": trilinear,
    "_weight_norm_interface_backward": weight_norm_backward,
    "cholesky": cholesky,
    "cholesky_solve": cholesky_solve,
    "cholesky_inverse": cholesky_inverse,
    "linalg_inv_ex": inverse,
    "linalg_pinv.atol_rtol_tensor": pseudo_inverse,
    "ormqr": ormqr,
    "triangular_solve": triangular_solve,
}


# Where gradients are needed: PyTorch's own read factors that it keeps in an order of its own.


def solved(a: Any, b: Any, left: bool = True) -> Any:
    """The solution of linear systems, in ops that can be differentiated."""
    import torch

    is_vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    right = b.unsqueeze(-1) if is_vector else b
    if not left:
        return solved(a.mT, right.mT).mT
    moves, lower, upper = torch.linalg.lu(a)
    half = torch.linalg.solve_triangular(lower, moves.mT @ right, upper=False, unitriangular=True)
    made = torch.linalg.solve_triangular(upper, half, upper=True)
    return made.squeeze(-1) if is_vector else made


def sign_and_logarithm(a: Any) -> tuple[Any, Any]:
    """Signs and logarithms of determinants, in ops that can be differentiated."""
    import torch

    moves, _, upper = torch.linalg.lu(a)
    diagonal = upper.diagonal(dim1=-2, dim2=-1)
    sign = torch.linalg.det(moves.detach()) * diagonal.sgn().prod(-1)
    return sign, diagonal.abs().log().sum(-1)


def determinant_alone(a: Any) -> Any:
    """Determinants, in ops that can be differentiated."""
    import torch

    moves, _, upper = torch.linalg.lu(a)
    return torch.linalg.det(moves.detach()) * upper.diagonal(dim1=-2, dim2=-1).prod(-1)


DIFFERENTIATED: dict[str, Callable[..., Any]] = {
    "aten.det.default": determinant_alone,
    "aten.linalg_det.default": determinant_alone,
    "aten.linalg_slogdet.default": sign_and_logarithm,
    "aten.linalg_solve.default": solved,
    "aten.slogdet.default": sign_and_logarithm,
}
