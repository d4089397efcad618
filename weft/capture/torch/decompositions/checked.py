"""Functions that cannot be exported: most check elements of their arguments by a branch."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from itertools import combinations as combinations_without
from itertools import combinations_with_replacement
from typing import Any

from weft.capture.torch.decompositions import scalar_indices
from weft.capture.torch.decompositions.drawing import fill_with_integers

_DRAWN = "_weft_drawn"  # an attribute of a single number of `torch.rand`


def cov(x: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """The covariance of rows, of which columns are observations."""
    import torch

    rows = x.reshape(1, -1) if x.dim() < 2 else x
    if not rows.dtype.is_floating_point and not rows.dtype.is_complex:
        rows = rows.to(torch.get_default_dtype())
    weights = fweights if aweights is None else aweights
    if fweights is not None and aweights is not None:
        weights = fweights * aweights
    if weights is None:
        total: Any = rows.shape[1]
        apart = scaled = rows - rows.sum(1, keepdim=True) / total
        count = max(total - correction, 0)
    else:
        total = weights.sum()
        apart = rows - (rows * weights).sum(1, keepdim=True) / total
        scaled = apart * weights
        share = 1 if aweights is None else (weights * aweights).sum() / total
        count = (total - correction * share).clamp(min=0)
    return ((scaled @ apart.mH) / count).squeeze()


def corrcoef(x: Any) -> Any:
    """Pearson's correlation of rows."""
    import torch

    made = cov(x)
    if made.dim() == 0:
        return made / made
    spread = made.diagonal().real.sqrt() if made.dtype.is_complex else made.diagonal().sqrt()
    made = made / spread[:, None] / spread[None, :]
    if made.dtype.is_complex:
        return torch.complex(made.real.clamp(-1, 1), made.imag.clamp(-1, 1))
    return made.clamp(-1, 1)


def gaussian_nll_loss(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:
    """The negative log likelihood of normal distributions."""
    import torch

    if not isinstance(var, torch.Tensor):
        var = torch.full_like(input, var)
    if var.shape != input.shape and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    # The gradient ignores the clamp, as in PyTorch, whose no_grad() is not recorded in here.
    var = torch.where(var < eps, eps + (var - var.detach()), var)
    loss = 0.5 * (var.log() + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def quantile(
    x: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """Quantiles along a dim; NaN where the row has one."""
    return _quantiles(x, q, dim, keepdim, interpolation, ignores_nan=False)


def nanquantile(
    x: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Any:
    """Quantiles along a dim of the numbers that are not NaN."""
    return _quantiles(x, q, dim, keepdim, interpolation, ignores_nan=True)


def _quantiles(
    x: Any, q: Any, dim: int | None, keepdim: bool, interpolation: str, ignores_nan: bool
) -> Any:
    import torch

    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        raise ValueError(f"quantile: no interpolation {interpolation!r}")
    if not isinstance(q, torch.Tensor):
        q = torch.tensor(q, dtype=x.dtype, device=x.device)
    if dim is None or x.dim() == 0:
        dim, rows = None, x.reshape(-1)
    else:
        rows = x.movedim(dim, -1)
    rows = rows.sort(-1).values  # NaN last
    missing = rows.isnan()
    if ignores_nan:
        last = (~missing).sum(-1, keepdim=True) - 1
        ranks = (q.reshape(-1) * last).clamp(min=0)
    else:
        last = rows.shape[-1] - 1
        ranks = torch.where(missing.any(-1, keepdim=True), last, q.reshape(-1) * last)
    rounded = {"lower": ranks.floor(), "higher": ranks.ceil(), "nearest": ranks.round()}
    ranks = rounded.get(interpolation, ranks)
    below = ranks.long()
    found = rows.gather(-1, below)
    if interpolation in ("linear", "midpoint"):
        part = ranks - below if interpolation == "linear" else torch.full_like(ranks, 0.5)
        found = found.lerp(rows.gather(-1, ranks.ceil().long()), part)
    found = found.movedim(-1, 0)  # the quantiles first
    if keepdim:
        ones = [1] * x.dim()
        found = found.reshape(-1, *ones) if dim is None else found.unsqueeze(1 + dim % x.dim())
    return found if q.dim() else found.squeeze(0)


def narrow(x: Any, dim: int, start: Any, length: int) -> Any:
    """A part of a dim; that of a start in a tensor is chosen by indices."""
    import torch

    if not isinstance(start, torch.Tensor):
        return torch.narrow(x, dim, start, length)
    first = torch.where(start < 0, start + x.shape[dim], start).to(torch.int64).reshape(())
    return x.index_select(dim, first + torch.arange(length, device=x.device))


def combinations(x: Any, r: int = 2, with_replacement: bool = False) -> Any:
    """All choices of r elements, whose number depends on the size alone."""
    import torch

    choose = combinations_with_replacement if with_replacement else combinations_without
    rows = [*choose(range(x.shape[0]), r)] if r else []
    if not r:
        return x.new_empty(0)
    return x[torch.tensor(rows, dtype=torch.int64, device=x.device).reshape(-1, r)]


def istft(
    x: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,  # the sizes say it
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """The signal of a short-time Fourier transform: overlapping frames, by the sum of windows."""
    import torch

    hop = n_fft // 4 if hop_length is None else hop_length
    width = n_fft if win_length is None else win_length
    if window is None:
        window = torch.ones(width, dtype=x.real.dtype, device=x.device)
    left = (n_fft - width) // 2
    window = torch.nn.functional.pad(window, (left, n_fft - width - left))
    norm = "ortho" if normalized else "backward"
    if return_complex:
        frames = torch.fft.ifft(x.mT, n_fft, norm=norm)
    else:  # of two sides the one
        frames = torch.fft.irfft(x[..., : n_fft // 2 + 1, :].mT, n_fft, norm=norm)
    count = x.shape[-1]
    total = n_fft + hop * (count - 1)
    offsets = hop * torch.arange(count, device=x.device)[:, None]
    places = (offsets + torch.arange(n_fft, device=x.device)).reshape(-1)
    frames = (frames * window).reshape(*x.shape[:-2], -1)
    signal = frames.new_zeros((*x.shape[:-2], total)).index_add(-1, places, frames)
    squares = (window * window).repeat(count)
    weight = squares.new_zeros(total).index_add(0, places, squares)
    first = n_fft // 2 if center else 0
    last = total - first if length is None else first + length
    signal = signal[..., first:last] / weight[first:last]
    return torch.nn.functional.pad(signal, (0, max(0, last - total)))


def one_hot(x: Any, num_classes: int = -1) -> Any:
    """1 at the place of each number, else 0."""
    import torch

    if num_classes < 0:  # then the size depends on elements
        return torch.nn.functional.one_hot(x, num_classes)
    return (x[..., None] == torch.arange(num_classes, device=x.device)).to(torch.int64)


def linear_cross_entropy(*args: Any, options: object = None, **kwargs: Any) -> Any:
    """The cross entropy of a layer's results; options, of chunks and sums, are the compiler's."""
    import torch

    return torch.nn.functional.linear_cross_entropy(*args, **kwargs)


@cache
def without_checks() -> Any:
    """The mode that replaces these functions by versions without checks."""
    import torch

    replacements: dict[Any, Callable[..., Any]] = {
        torch.cov: cov,
        torch.corrcoef: corrcoef,
        torch.nn.functional.gaussian_nll_loss: gaussian_nll_loss,
        torch.combinations: combinations,
        torch.istft: istft,
        torch.nn.functional.one_hot: one_hot,
        torch.narrow: narrow,
        torch.quantile: quantile,
        torch.nanquantile: nanquantile,
        torch.Tensor.__getitem__: scalar_indices.get_item,
        torch.Tensor.__setitem__: scalar_indices.set_item,
        torch.Tensor.cov: cov,
        torch.Tensor.corrcoef: corrcoef,
        torch.Tensor.istft: istft,
        torch.Tensor.narrow: narrow,
        torch.Tensor.quantile: quantile,
        torch.Tensor.nanquantile: nanquantile,
        torch.Tensor.random_: fill_with_integers,
    }

    if chunked := getattr(torch.nn.functional, "linear_cross_entropy", None):  # of PyTorch 2.13
        replacements[chunked] = linear_cross_entropy

    less = (torch.lt, torch.Tensor.lt, torch.Tensor.__lt__)

    class WithoutChecks(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        """Calls of these functions are calls of their replacements.

        Layers that are dropped with a probability of 0, `if torch.rand([]) < 0.0`, branch on no
        element: a number of `rand` is at least 0.
        """

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function in less and getattr(args[0], _DRAWN, False):
                bound = args[1]
                if isinstance(bound, int | float) and bound <= 0:
                    return torch.tensor(False)
            made = replacements.get(function, function)(*args, **(kwargs or {}))
            if function is torch.rand and not made.dim():
                setattr(made, _DRAWN, True)
            return made

    return WithoutChecks
