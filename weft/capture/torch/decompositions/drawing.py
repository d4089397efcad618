"""Random orders, choices and slopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def randperm(n: int, *, dtype: Any = None, **layout: Any) -> Any:
    """The order of random numbers."""
    import torch

    made = torch.rand(n, dtype=torch.float64).argsort()
    return made if dtype is None else made.to(dtype)


def multinomial(
    chances: Any, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Any:
    """Indices by their chances: the first of exponential races, or the inverse of their sums."""
    import torch

    wide = chances.to(torch.float64)
    if not replacement or num_samples == 1:
        race = wide / -torch.log1p(-torch.rand(wide.shape, dtype=torch.float64))
        return race.topk(num_samples, -1)[1]
    sums = wide.cumsum(-1)
    drawn = torch.rand((*wide.shape[:-1], num_samples), dtype=torch.float64) * sums[..., -1:]
    return (sums[..., None, :] <= drawn[..., None]).to(torch.int64).sum(-1)


def normal(mean: float, std: float, size: Any, *, generator: Any = None, **layout: Any) -> Any:
    """Normal numbers of one mean and deviation; PyTorch's own decomposition ends in a prim."""
    import torch

    return torch.randn(size, **layout) * std + mean


def fill_with_integers(x: Any, *limits: Any, generator: Any = None, **named: Any) -> Any:
    """`x.random_()`: PyTorch exports it under the name `from`, a keyword of Python's."""
    import torch

    given = (*limits, *[named[word] for word in ("from", "to") if word in named])
    low, high = (0, *given)[-2:] if given else (0, None)
    if high is None:
        floats = x.dtype.is_floating_point
        high = int(2 / torch.finfo(x.dtype).eps) + 1 if floats else _beyond(x.dtype)
    return x.copy_(torch.randint(low, high, x.shape, dtype=x.dtype, device=x.device))


def _beyond(dtype: Any) -> int:
    import torch

    # The last integer of 64 bits is left out: what is beyond it has more bits.
    return 2 if dtype is torch.bool else min(torch.iinfo(dtype).max + 1, 2**63 - 1)


def rrelu(
    x: Any,
    noise: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> tuple[Any, Any]:
    """A leaky ReLU with a random slope for each negative element, and the slopes."""
    import torch

    if not training:
        return torch.where(x > 0, x, x * ((lower + upper) / 2)), noise
    slopes = torch.rand_like(x) * (upper - lower) + lower
    slopes = torch.where(x <= 0, slopes, 1)
    return x * slopes, slopes


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "multinomial": multinomial,
    "normal.float_float": normal,
    "randperm": randperm,
    "rrelu_with_noise_functional": rrelu,
}
