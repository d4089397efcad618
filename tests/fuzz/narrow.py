"""Random programs of narrow types in JAX, and what exact arithmetic makes of them.

Numbers are small integers, so that most programs round nowhere: every way of running them must then
give the same bits. A program knows whether it rounds, by a run with floats of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import weft
from weft import Mesh, P

Function = Callable[..., Any]
FLOATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32")
INTEGERS = ("int8", "uint8", "int16", "int32")
DTYPES = (*FLOATS, *INTEGERS, "bool", "complex64")
SIZES = (1, 2, 3, 4, 5, 8)
MESHES = (Mesh(a=2), Mesh(a=4), Mesh(a=2, b=2), Mesh(a=3), Mesh(a=2, b=3))
WIDE = {**dict.fromkeys(FLOATS, "float64"), "complex64": "complex128"}


@dataclass
class Draw:
    """A program that is being written: its arguments, and steps from values to a new value."""

    rng: np.random.Generator
    arguments: list[np.ndarray[Any, Any]] = field(default_factory=list)
    steps: list[tuple[str, tuple[int, ...], Function]] = field(default_factory=list)
    types: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    def of(self, *choices: Any) -> Any:
        """One of these."""
        return choices[int(self.rng.integers(len(choices)))]

    def pick(self, *dtypes: str, rank: int | None = None) -> int | None:
        """A value of one of these types, the latest ones more often."""
        found = [
            n
            for n, (dtype, shape) in enumerate(self.types)
            if (not dtypes or dtype in dtypes) and (rank is None or len(shape) == rank)
        ]
        return found[-1 - min(int(self.rng.exponential(1.5)), len(found) - 1)] if found else None

    def add(self, told: str, given: tuple[int, ...], function: Function) -> None:
        """A step; one that JAX refuses for these types is left out."""
        import jax

        shapes = [jax.ShapeDtypeStruct(self.types[n][1], self.types[n][0]) for n in given]
        try:
            made = jax.eval_shape(function, *shapes)
        except (TypeError, ValueError, IndexError, NotImplementedError):
            return
        if made.size and str(made.dtype) in DTYPES:
            self.steps.append((told, given, function))
            self.types.append((str(made.dtype), made.shape))


@dataclass(frozen=True)
class Program:
    """A program of a few arrays, what it is made of, and how it is run."""

    function: Function
    arguments: tuple[Any, ...]
    told: str
    is_exact: bool
    mesh: Mesh
    in_shardings: tuple[P, ...]


def program(seed: int, steps: int = 7) -> Program:
    """The program of a number."""
    draw = Draw(np.random.default_rng(seed))
    for _ in range(2):
        shape = tuple(draw.of(*SIZES) for _ in range(draw.of(1, 2, 2, 2)))
        dtype = draw.of(*DTYPES)
        draw.arguments.append(numbers(draw.rng, shape, dtype))
        draw.types.append((dtype, shape))
    while len(draw.steps) < steps:
        draw.of(*STEPS)(draw)
    kept = [len(draw.types) - 1, *(n for n in range(2, len(draw.types) - 1) if draw.of(0, 0, 0, 1))]
    lines = [f"%{n + 2} = {told} {given}" for n, (told, given, _) in enumerate(draw.steps)]
    types = [f"{dtype}{list(shape)}" for dtype, shape in draw.types]
    told = "; ".join([*types[:2], *(f"{a}: {b}" for a, b in zip(lines, types[2:], strict=True))])
    mesh = draw.of(*MESHES)
    split = tuple(_split(draw, mesh, array.ndim) for array in draw.arguments)
    run = _function(draw, kept)
    exact = _is_exact(draw)
    return Program(run, tuple(draw.arguments), f"{told} -> {kept}", exact, mesh, split)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Small integers, zeros of both signs among them; in a few programs also larger ones."""
    import ml_dtypes

    low = 0 if dtype.startswith(("u", "bool")) else -3
    made = rng.integers(low, 4 if dtype != "bool" else 2, shape).astype(np.float64)
    if dtype in FLOATS:
        made = np.where((made == 0) & (rng.random(shape) < 0.3), -0.0, made)
    kind = getattr(ml_dtypes, dtype, None) or np.dtype(dtype)
    if dtype == "complex64":
        made = made + 1j * rng.integers(-3, 4, shape)
    return made.astype(kind)


def _split(draw: Draw, mesh: Mesh, rank: int) -> P:
    axes = [str(a) for a in draw.rng.permutation([name for name, _ in mesh.axes])]
    dims: list[Any] = []
    for _ in range(rank):
        dims.append(axes.pop() if axes and draw.of(0, 1, 1) else None)
    return P(*dims)


def _function(draw: Draw, kept: list[int]) -> Function:
    steps = list(draw.steps)

    def main(*arguments: Any) -> Any:
        values = [*arguments]
        for _, given, function in steps:
            values.append(function(*[values[n] for n in given]))
        return tuple([values[n] for n in kept])

    return main


def _is_exact(draw: Draw) -> bool:
    """Whether no step rounds: in floats of 64 bits the same numbers come out everywhere."""
    import jax

    every = _function(draw, [*range(len(draw.types))])
    held = reference(every, draw.arguments)
    with jax.enable_x64(True):
        wide = reference(every, [_wide(a) for a in draw.arguments])
    with np.errstate(all="ignore"):
        pairs = [
            (a.astype(np.complex128), b.astype(np.complex128))
            for a, b in zip(held, wide, strict=True)
        ]
    return all(np.array_equal(a, b) for a, b in pairs)


def reference(function: Function, arguments: Sequence[Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """What a function gives op by op in numpy."""
    from weft.capture import capture

    return weft.evaluate(capture(function, arguments).module, *arguments)


def _wide(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wanted = WIDE.get(str(array.dtype))
    return array if wanted is None else array.astype(wanted)


def _as(dtype: str) -> Function:
    """A conversion; in a run with wide floats to the wide type."""
    import jax

    def convert(x: Any) -> Any:
        wide = jax.config.jax_enable_x64
        return x.astype(WIDE.get(dtype, dtype) if wide else dtype)

    return convert


# Steps


def unary(draw: Draw) -> None:
    """A function of every element."""
    import jax.numpy as jnp
    from jax import lax

    ways: dict[str, Function] = {
        "neg": lambda x: -x,
        "abs": jnp.abs,
        "sign": jnp.sign,
        "square": lambda x: x * x,
        "relu": lambda x: jnp.maximum(x, 0),
        "isnan": jnp.isnan,
        "not zero": lambda x: x != 0,
        "floor half": lambda x: jnp.floor(x / 2),
        "conj": jnp.conj,
        "real": jnp.real,
        "invert": lambda x: ~x,
        "clip": lambda x: lax.clamp(x.dtype.type(0), x, x.dtype.type(1)),
        "nan to num": jnp.nan_to_num,
        "sqrt of square": lambda x: jnp.sqrt(x * x),
    }
    name = draw.of(*ways)
    # XLA clamps complex numbers by their real parts, StableHLO in the order of `compare`.
    kinds = FLOATS + INTEGERS if name == "clip" else DTYPES
    if (n := draw.pick(*kinds)) is not None:
        draw.add(name, (n,), ways[name])


def convert(draw: Draw) -> None:
    """Another type for every element."""
    dtype = draw.of(*DTYPES)
    if (n := draw.pick()) is not None and draw.types[n][0] != "complex64":
        draw.add(f"to {dtype}", (n,), _as(dtype))


def binary(draw: Draw) -> None:
    """A function of two values of one type, one of them perhaps broadcast."""
    import jax.numpy as jnp

    first = draw.pick()
    assert first is not None
    dtype, shape = draw.types[first]
    alike = [n for n, type in enumerate(draw.types) if type[0] == dtype and _joins(type[1], shape)]
    second = alike[int(draw.rng.integers(len(alike)))]
    ways: dict[str, Function] = {
        "add": lambda x, y: x + y,
        "sub": lambda x, y: x - y,
        "mul": lambda x, y: x * y,
        "max": jnp.maximum,
        "min": jnp.minimum,
        "where": lambda x, y: jnp.where(x == y, x, -y),
        "less": lambda x, y: x < y,
        "and": lambda x, y: x & y,
        "div": lambda x, y: x / jnp.where(y == 0, 1, y),
        "select": lambda x, y: jnp.where(y != 0, x, 0),
    }
    name = draw.of(*ways)
    draw.add(name, (first, second), ways[name])


def _joins(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    try:
        np.broadcast_shapes(shape, other)
    except ValueError:
        return False
    return True


def reduce(draw: Draw) -> None:
    """A combination along a dim, or a running one."""
    import jax.numpy as jnp

    ways: dict[str, Function] = {
        "sum": lambda x, d: jnp.sum(x, d, dtype=x.dtype),
        "sum kept": lambda x, d: jnp.sum(x, d, dtype=x.dtype, keepdims=True),
        "max": jnp.max,
        "min": jnp.min,
        "prod": lambda x, d: jnp.prod(x[tuple([slice(3)] * x.ndim)], d, dtype=x.dtype),
        "any": jnp.any,
        "argmax": jnp.argmax,
        "cumsum": lambda x, d: jnp.cumsum(x, d, dtype=x.dtype),
        "sort": jnp.sort,
        "mean of": lambda x, d: x - jnp.max(x, d, keepdims=True),
    }
    name, n = draw.of(*ways), draw.pick()
    if n is not None and draw.types[n][1]:
        dim, way = int(draw.rng.integers(len(draw.types[n][1]))), ways[name]
        draw.add(f"{name} along {dim}", (n,), lambda x: way(x, dim))


def product(draw: Draw) -> None:
    """A product of two values of one type, summed over a dim of each or over none."""
    from jax import lax

    first = draw.pick(*FLOATS, *INTEGERS, "complex64")
    if first is None or not draw.types[first][1]:
        return
    dtype, shape = draw.types[first]
    pairs = [
        (n, a, b)
        for n, (other, sizes) in enumerate(draw.types)
        for a, size in enumerate(shape)
        for b, length in enumerate(sizes)
        if other == dtype and size == length
    ]
    second, a, b = pairs[int(draw.rng.integers(len(pairs)))]
    if len(shape) + len(draw.types[second][1]) > 4:
        return
    over = draw.of((((a,), (b,)), ((), ())), (((a,), (b,)), ((), ())), (((), ()), ((a,), (b,))))
    draw.add(f"dot {over}", (first, second), lambda x, y: lax.dot_general(x, y, over))


def shape_of(draw: Draw) -> None:
    """The same elements at other places, some of them left out or repeated."""
    import jax.numpy as jnp

    n = draw.pick()
    assert n is not None
    rank = len(draw.types[n][1])
    if not rank:
        return
    dim, size = int(draw.rng.integers(rank)), 2 + int(draw.rng.integers(3))
    ways: dict[str, Function] = {
        "transpose": jnp.transpose,
        "flat": jnp.ravel,
        "column": lambda x: x.reshape(-1, 1),
        "slice": lambda x: x[1:] if x.shape[0] > 1 else x,
        "step": lambda x: x[::2],
        "flip": lambda x: jnp.flip(x, dim),
        "roll": lambda x: jnp.roll(x, 1, dim),
        "pad": lambda x: jnp.pad(x, [(1, 2) if d == dim else (0, 0) for d in range(x.ndim)]),
        "twice": lambda x: jnp.concatenate([x, x], dim),
        "repeat": lambda x: jnp.broadcast_to(x[None], (size, *x.shape)) if x.ndim < 3 else x,
        "diagonal": lambda x: jnp.diagonal(x) if x.ndim > 1 else x,
        "iota": lambda x: x * jnp.arange(x.shape[-1]).astype(x.dtype),
    }
    name = draw.of(*ways)
    draw.add(f"{name} {dim}", (n,), ways[name])


def indexed(draw: Draw) -> None:
    """Elements that indices name are read, or combined into."""
    import jax.numpy as jnp

    n = draw.pick()
    assert n is not None
    if not draw.types[n][1]:
        return
    at = jnp.asarray(draw.rng.integers(-2, 6, int(draw.rng.integers(1, 5))))
    ways: dict[str, Function] = {
        "take": lambda x: x[at],
        "take, filled": lambda x: x.at[at].get(mode="fill", fill_value=1),
        "add at": lambda x: x.at[at].add(x[0]),
        "mul at": lambda x: x.at[at].multiply(x[-1]),
        "max at": lambda x: x.at[at].max(x[0]),
        "set at": lambda x: x.at[at[0]].set(x[0]),
        "dynamic": lambda x: x.at[at[0]].set(jnp.zeros_like(x[0]), mode="drop"),
    }
    name = draw.of(*ways)
    draw.add(f"{name} {at.tolist()}", (n,), ways[name])


def looped(draw: Draw) -> None:
    """A loop, a scan or a branch over a value."""
    from jax import lax

    n = draw.pick()
    assert n is not None
    ways: dict[str, Function] = {
        "loop": lambda x: lax.fori_loop(0, 2, lambda i, c: c + x, x),
        "scan": lambda x: lax.scan(lambda c, r: (c + r, c), x[0] * 0, x)[1] if x.ndim else x,
        "branch": lambda x: lax.cond((x != 0).any(), lambda: x + x, lambda: -x),
    }
    name = draw.of(*ways)
    draw.add(name, (n,), ways[name])


def derived(draw: Draw) -> None:
    """The gradient of a sum of products, through another type and back."""
    import jax
    import jax.numpy as jnp

    n = draw.pick("float16", "bfloat16", "float32")
    if n is None:
        return
    through = _as(draw.of("float16", "bfloat16", "float32"))
    ways: dict[str, Function] = {
        "square": lambda x: (through(x) * x.astype(through(x).dtype)).sum(),
        "max": lambda x: through(x).max(),
        "product": lambda x: (through(x) @ through(x).T).sum() if x.ndim == 2 else through(x).sum(),
        "relu": lambda x: (through(jnp.maximum(x, 0)) * 2).sum(),
        "take": lambda x: through(x)[jnp.asarray([0, 0, 7])].sum(),
        "cumsum": lambda x: jnp.cumsum(through(x)).sum(),
    }
    name = draw.of(*ways)

    def slope(x: Any) -> Any:
        return jax.grad(lambda v: ways[name](v).astype(v.dtype))(x)

    draw.add(f"gradient of {name}", (n,), slope)


STEPS: tuple[Callable[[Draw], None], ...] = (
    unary,
    unary,
    convert,
    convert,
    binary,
    binary,
    binary,
    reduce,
    reduce,
    product,
    product,
    shape_of,
    shape_of,
    indexed,
    looped,
    derived,
)


# Comparing


def difference(mine: Any, wanted: Any, *, signs: bool = True) -> str | None:
    """Where two arrays differ, in the sign of a real zero, too, or None.

    The signs of complex zeros are those of whatever order products are added up in.
    """
    mine, wanted = np.asarray(mine), np.asarray(wanted)
    if mine.dtype != wanted.dtype or mine.shape != wanted.shape:
        return f"{mine.dtype}{mine.shape} instead of {wanted.dtype}{wanted.shape}"
    a, b = (x.astype(np.complex128) for x in (mine, wanted))
    parts = [(a.real, b.real), (a.imag, b.imag)]
    signed = signs and wanted.dtype.kind != "c"
    good = [
        (x == y) & (np.signbit(x) == np.signbit(y) if signed else True) | np.isnan(x) & np.isnan(y)
        for x, y in parts
    ]
    bad = np.argwhere(~(good[0] & good[1]))
    if not bad.size:
        return None
    place = tuple(int(i) for i in bad[0])
    return f"element {list(place)} is {mine[place]}, not {wanted[place]} ({len(bad)} differ)"


def check(sample: Program, level: Any, target: str, *, on_mesh: bool) -> str | None:
    """What a compiled program gives otherwise than the reference on one device."""
    import jax

    wanted = reference(sample.function, sample.arguments)
    how: dict[str, Any] = {"mesh": sample.mesh, "in_shardings": sample.in_shardings}
    compiled = weft.compile(
        sample.function,
        *sample.arguments,
        level=level,
        target=target,
        **(how if on_mesh else {}),
    )
    found = jax.tree.leaves(compiled(*sample.arguments))
    for n, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        # numpy's own maximum and minimum take either of two zeros.
        if told := difference(mine, theirs, signs=target != "numpy"):
            return f"result {n}: {told}"
    return None
