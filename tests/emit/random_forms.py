"""Random forms of ops in JAX: dims in every order, odd sizes, and work before and after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Function = Callable[..., Any]


@dataclass(frozen=True)
class Form:
    """A program of a few arrays, and what it is made of."""

    function: Function
    arguments: tuple[Any, ...]
    told: str


class Draw:
    """Numbers, arrays and choices from a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def number(self, low: int, high: int) -> int:
        """A number from low up to, not including, high."""
        return int(self.rng.integers(low, high))

    def sizes(self, count: int, among: tuple[int, ...] = (1, 2, 3, 5, 17)) -> list[int]:
        """As many sizes of dims."""
        return [int(self.rng.choice(among)) for _ in range(count)]

    def order(self, count: int) -> list[int]:
        """The first numbers in some order."""
        return [int(n) for n in self.rng.permutation(count)]

    def array(self, sizes: list[int]) -> np.ndarray[Any, Any]:
        """An array of that shape."""
        return (self.rng.standard_normal(sizes) / 2).astype(np.float32)


def form(seed: int) -> Form:
    """The program of a number."""
    draw = Draw(seed)
    kinds = [reduced, multiplied, windowed, padded, rearranged, convolved]
    made = kinds[seed % len(kinds)](draw)
    before, after = _before(draw), _after(draw)

    def main(first: Any, *others: Any) -> Any:
        return after(made.function(before(first), *others))

    return Form(main, made.arguments, made.told)


def _before(draw: Draw) -> Function:
    import jax.numpy as jnp

    ways: list[Function] = [lambda x: x, jnp.sin, lambda x: jnp.where(x > 0, x, x * 0.1)]
    return ways[draw.number(0, len(ways))]


def _after(draw: Draw) -> Function:
    import jax.numpy as jnp

    ways: list[Function] = [
        lambda y: y,
        lambda y: (y, jnp.tanh(y).sum()),
        lambda y: y.T + 1,
        lambda y: y.reshape(-1) * 3,
        lambda y: y - y.mean(tuple(range(y.ndim))[::-1], keepdims=True),
    ]
    return ways[draw.number(0, len(ways))]


def reduced(draw: Draw) -> Form:
    """Sums, maxima and variances over dims in any order."""
    sizes = draw.sizes(draw.number(1, 5))
    over = tuple(draw.order(len(sizes))[: draw.number(1, len(sizes) + 1)])
    ways: dict[str, Function] = {
        "sum": lambda x: x.sum(over),
        "max": lambda x: x - x.max(over, keepdims=True),
        "variance": lambda x: x.var(over),
    }
    name = [*ways][draw.number(0, len(ways))]
    return Form(ways[name], (draw.array(sizes),), f"{name} of {sizes} over {over}")


def multiplied(draw: Draw) -> Form:
    """A product whose batches and sums are dims in any order of either side."""
    from jax import lax

    batch, inner = draw.sizes(draw.number(0, 3)), draw.sizes(draw.number(0, 3))
    shared = len(batch) + len(inner)
    sides, orders = [], []
    for _ in range(2):
        own = [*batch, *inner, *draw.sizes(draw.number(0, 3), (1, 2, 7, 33))]
        order = draw.order(len(own))
        sides.append(draw.array([own[d] for d in order]))
        orders.append(order)
    batches = draw.order(len(batch))
    summed = [len(batch) + n for n in draw.order(shared - len(batch))]
    left, right = ([[o.index(d) for d in dims] for dims in (summed, batches)] for o in orders)
    numbers = ((left[0], right[0]), (left[1], right[1]))
    told = f"product of {[s.shape for s in sides]} by {numbers}"
    return Form(lambda x, y: lax.dot_general(x, y, numbers), tuple(sides), told)


def windowed(draw: Draw) -> Form:
    """The sum or the largest of windows, which move in steps over a padded array."""
    from jax import lax

    sizes = draw.sizes(draw.number(1, 4), (1, 3, 5, 8))
    window = [min(n, draw.number(1, 4)) for n in sizes]
    steps, pads = draw.sizes(len(sizes), (1, 2, 3)), [(draw.number(0, 2), 1) for _ in sizes]
    start, fold = [(0.0, lax.add), (-3.0, lax.max)][draw.number(0, 2)]

    def main(x: Any) -> Any:
        return lax.reduce_window(x, np.float32(start), fold, window, steps, pads)

    told = f"windows {window} of {sizes} in steps {steps}, padded {pads}, from {start}"
    return Form(main, (draw.array(sizes),), told)


def padded(draw: Draw) -> Form:
    """An array with less or more at its edges, and something between its elements."""
    from jax import lax

    sizes = draw.sizes(draw.number(1, 4), (3, 5, 17))
    pads = [(draw.number(-1, 4), draw.number(-1, 4), draw.number(0, 3)) for _ in sizes]
    told = f"{sizes} padded {pads}"
    return Form(lambda x: lax.pad(x, np.float32(0.3), pads) * 2, (draw.array(sizes),), told)


def rearranged(draw: Draw) -> Form:
    """An array that is transposed, cut and transposed again."""
    import jax.numpy as jnp

    sizes = draw.sizes(draw.number(2, 5), (2, 3, 4, 6))
    first, last = draw.order(len(sizes)), draw.order(len(sizes))
    cut = tuple([slice(draw.number(0, 2), None, draw.number(1, 3)) for _ in sizes])

    def main(x: Any) -> Any:
        flat = jnp.transpose(x, first).reshape(sizes[0], -1)[::-1].reshape(sizes)
        return jnp.transpose(flat[cut], last)

    told = f"{sizes} by {first}, {cut}, {last}"
    return Form(main, (draw.array(sizes),), told)


def convolved(draw: Draw) -> Form:
    """The derivatives of a convolution in steps, in groups, of dims in any order."""
    import jax
    from jax import lax

    groups, depth, made = draw.number(1, 4), draw.number(1, 4), draw.number(1, 4)
    shapes = [[draw.number(1, 4), groups * depth, 5, 8], [groups * made, depth, 3, 2]]
    orders = [draw.order(4) for _ in range(3)]
    steps, spread = draw.sizes(2, (1, 2, 3)), draw.sizes(2, (1, 2))
    numbers = lax.ConvDimensionNumbers(*[tuple(order) for order in orders])
    pads = [(draw.number(0, 3), draw.number(0, 3)) for _ in range(2)]
    side = draw.number(0, 2)

    def main(x: Any, w: Any) -> Any:
        how: dict[str, Any] = {"rhs_dilation": spread, "feature_group_count": groups}
        return lax.conv_general_dilated(x, w, steps, pads, dimension_numbers=numbers, **how)

    def slope(x: Any, w: Any) -> Any:
        return jax.grad(lambda x, w: (main(x, w) ** 2).sum(), side)(x, w)

    given = [
        draw.array([shape[order.index(d)] for d in range(4)])
        for shape, order in zip(shapes, orders[:2], strict=True)
    ]
    told = f"{shapes} in {groups} groups, steps {steps}, spread {spread}, pads {pads}, {numbers}"
    return Form(slope, tuple(given), told)
